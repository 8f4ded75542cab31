//! Code that several tests of the program share.

pub(crate) mod json_page;
pub(crate) mod machine;
