"""The doors: HTTP, the command line and the job engine behind them."""
