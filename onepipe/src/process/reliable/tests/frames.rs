//! Single frames and calls.
