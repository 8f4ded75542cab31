//! The library's configuration files and rings.

mod file;
mod ring;
