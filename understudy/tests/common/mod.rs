//! What several tests of the program need.
#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod machine;
