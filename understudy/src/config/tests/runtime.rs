//! `[runtime]`.

use super::{runtime, wrong};

#[test]
fn workers() {
    wrong(
        &runtime("workers = 2 #!"),
        "`workers` has to be a list: one element for each worker",
        r#"write `workers = [1]` for a worker on CPU 1, or `workers = ["any", "any"]` for two that the kernel places"#,
    );
    wrong(
        &runtime(r#"workers = "any" #!"#),
        "`workers` has to be a list: one element for each worker",
        r#"write `workers = [1]` for a worker on CPU 1, or `workers = ["any", "any"]` for two that the kernel places"#,
    );
    wrong(
        &runtime("workers = [] #!"),
        "`workers` lists 0 workers",
        "list 1 to 128: `workers = [1]`, or leave the key out for one that the kernel places",
    );
    wrong(
        &runtime("workers = [9] #!"),
        "this machine has no CPU 9",
        r#"its CPUs are 0-3; `"any"` in place of a number leaves the worker to the kernel"#,
    );
    wrong(
        &runtime("workers = [1, 0, 1] #!"),
        "CPU 1 is listed twice",
        "give each worker a CPU of its own: two workers that poll on one CPU slow each other down",
    );
    wrong(
        &runtime(r#"workers = ["all"] #!"#),
        r#"a worker is placed on a CPU number or on `"any"`"#,
        r#"write `workers = [1]`, or `workers = ["any"]`"#,
    );
    wrong(
        &runtime(r#"workers = ["1"] #!"#),
        r#"a worker is placed on a CPU number or on `"any"`"#,
        r#"write `workers = [1]`, or `workers = ["any"]`"#,
    );
    wrong(
        &runtime("workers = [1.5] #!"),
        "an element of `workers` has to be a whole number, and is a number with a fraction",
        "write a number such as `1`",
    );
    wrong(
        &runtime("workers = [-1] #!"),
        "an element of `workers` cannot be -1",
        "write a number from 0 to 65535, such as `1`",
    );
}

#[test]
fn idle() {
    wrong(
        &runtime(r#"idle = "yeild" #!"#),
        "`idle` cannot be `yeild`",
        "did you mean `yield`? it can be `spin`, `yield` or `sleep`",
    );
    wrong(
        &runtime("idle = true #!"),
        "`idle` has to be a string in quotes, and is `true` or `false`",
        "write a string in quotes, such as `idle = \"spin\"`",
    );
}

#[test]
fn names_and_sizes() {
    wrong(
        &runtime(r#"file_prefix = "a/b" #!"#),
        "`file_prefix` cannot be used in file names",
        r#"write up to 32 letters, digits, `-` and `_`, such as `file_prefix = "understudy"`"#,
    );
    wrong(
        &runtime("telemetry = true #!"),
        "`telemetry` needs a `file_prefix`",
        r#"add `file_prefix = "understudy"`: then the socket is /var/run/dpdk/understudy/dpdk_telemetry.v2, and `dpdk-telemetry.py -f understudy` finds it"#,
    );
    wrong(
        &runtime("handoff_ring = 1000 #!"),
        "`handoff_ring` has to be a power of two, but is 1000",
        "the nearest are `512` and `1024`",
    );
    wrong(
        &runtime("handoff_ring = 1 #!"),
        "`handoff_ring` cannot be 1",
        "write a number from 2 to 1048576, such as `handoff_ring = 1024`",
    );
    wrong(
        &runtime("control_queue = 0 #!"),
        "`control_queue` cannot be 0",
        "write a number from 1 to 1048576, such as `control_queue = 1024`",
    );
    wrong(
        &runtime("stop_when_idle_ms = 0 #!"),
        "`stop_when_idle_ms` cannot be 0",
        "write a number from 1 to 86400000, such as `stop_when_idle_ms = 300`",
    );
}

#[test]
fn memory_that_is_too_little() {
    wrong(
        &runtime("memory_mb = 16 #!"),
        "the packet buffers of the ports need 67 MB or more",
        "write `memory_mb = 80`, leave it out, or reduce `buffers`",
    );
    wrong(
        &runtime("hugepages = true\nmemory_mb = 16 #!"),
        "the packet buffers of the ports need 40 MB or more",
        "write `memory_mb = 64`, leave it out, or reduce `buffers`",
    );
}
