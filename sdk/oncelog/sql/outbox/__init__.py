"""Messages in the caller's own database, in the transaction of the change that they tell of, and what publishes them."""
