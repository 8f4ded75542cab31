//! Schedules of blocks, and models of what they take.

mod cosmos;
mod model;
mod schedule;
