//! Configuration files of the library, and endpoints on ring devices.

mod file;
mod reliable;
mod ring;
