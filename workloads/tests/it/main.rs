//! Suites that run a workload for many seeds. They are one program with one module per suite.

mod clover;
mod consensus;
mod costs;
mod counter_totals;
mod detours;
mod drawn;
mod environment;
mod faults;
mod groups;
mod locks;
mod onepipe;
mod onepipe_fat_tree;
mod onepipe_loss;
mod rack_costs;
mod rdmc;
mod responder;
mod sherman;
mod steering;
mod steering_costs;
mod swordbox;
mod verbs;
mod words;
