//! What rates come of two looks, and what the screen shows of them.
