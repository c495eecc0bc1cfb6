"""Strategy matrices by structure: what each stores, its rows, its products, and its compiled recurrences."""
