//! What several tests of the program need.

pub(crate) mod machine;
