//! Code that several tests of the program share.

pub(crate) mod machine;
