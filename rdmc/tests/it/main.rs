//! Schedules of blocks, and models of transfer times.

mod cosmos;
mod model;
mod schedule;
