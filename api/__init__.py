"""The doors: HTTP, the command line and the job engine behind them."""

if __name__ == "api":  # a checkout's own folder: the modules are those of `factorize.api`, not second copies
    from factorize.former_names import hand_out

    hand_out("api")
