"""The parts of a private training job besides its noise: orders, samplings, schedules and receipts."""

from factorize.training.learning_schedules import schedule_rates
from factorize.training.orders import Order, fixed_order, full_batch, take_turns

__all__ = ["Order", "fixed_order", "full_batch", "schedule_rates", "take_turns"]
