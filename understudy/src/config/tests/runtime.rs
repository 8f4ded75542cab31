//! Tests of `[runtime]`.

use super::{fails, runtime};

#[test]
fn workers_are_a_list_of_distinct_cpus() {
    fails(
        &runtime("workers = 2 #!"),
        "`workers` has to be a list: one element for each worker",
        r#"write `workers = [1]` for a worker on CPU 1, or `workers = ["any", "any"]` for two that the kernel places"#,
    );
    fails(
        &runtime(r#"workers = "any" #!"#),
        "`workers` has to be a list: one element for each worker",
        r#"write `workers = [1]` for a worker on CPU 1, or `workers = ["any", "any"]` for two that the kernel places"#,
    );
    fails(
        &runtime("workers = [] #!"),
        "`workers` lists 0 workers",
        "list 1 to 128: `workers = [1]`, or leave the key out for one that the kernel places",
    );
    fails(
        &runtime("workers = [9] #!"),
        "this machine has no CPU 9",
        r#"its CPUs are 0-3; `"any"` in place of a number lets the kernel place the worker"#,
    );
    fails(
        &runtime("workers = [1, 0, 1] #!"),
        "CPU 1 is listed twice",
        "give each worker a CPU of its own: two workers that poll on one CPU slow each other down",
    );
    fails(
        &runtime(r#"workers = ["all"] #!"#),
        r#"a worker's CPU has to be a number or `"any"`"#,
        r#"write `workers = [1]`, or `workers = ["any"]`"#,
    );
    fails(
        &runtime(r#"workers = ["1"] #!"#),
        r#"a worker's CPU has to be a number or `"any"`"#,
        r#"write `workers = [1]`, or `workers = ["any"]`"#,
    );
    fails(
        &runtime("workers = [1.5] #!"),
        "an element of `workers` has to be a whole number, and is a number with a fraction",
        "write a number such as `1`",
    );
    fails(
        &runtime("workers = [-1] #!"),
        "an element of `workers` cannot be -1",
        "write a number from 0 to 65535, such as `1`",
    );
}

#[test]
fn idle_has_one_of_three_values() {
    fails(
        &runtime(r#"idle = "yeild" #!"#),
        "`idle` cannot be `yeild`",
        "did you mean `yield`? it can be `spin`, `yield` or `sleep`",
    );
    fails(
        &runtime("idle = true #!"),
        "`idle` has to be a string in quotes, and is `true` or `false`",
        "write a string in quotes, such as `idle = \"spin\"`",
    );
}

#[test]
fn names_and_sizes_are_checked() {
    fails(
        &runtime(r#"file_prefix = "a/b" #!"#),
        "`file_prefix` cannot be used in file names",
        r#"write up to 32 letters, digits, `-` and `_`, such as `file_prefix = "understudy"`"#,
    );
    fails(
        &runtime("telemetry = true #!"),
        "`telemetry` needs a `file_prefix`",
        r#"add `file_prefix = "understudy"`: then the socket is /var/run/dpdk/understudy/dpdk_telemetry.v2, and `dpdk-telemetry.py -f understudy` finds it"#,
    );
    fails(
        &runtime("handoff_ring = 1000 #!"),
        "`handoff_ring` has to be a power of two, but is 1000",
        "the nearest are `512` and `1024`",
    );
    fails(
        &runtime("handoff_ring = 1 #!"),
        "`handoff_ring` cannot be 1",
        "write a number from 2 to 1048576, such as `handoff_ring = 1024`",
    );
    fails(
        &runtime("control_queue = 0 #!"),
        "`control_queue` cannot be 0",
        "write a number from 1 to 1048576, such as `control_queue = 1024`",
    );
    fails(
        &runtime("stop_when_idle_ms = 0 #!"),
        "`stop_when_idle_ms` cannot be 0",
        "write a number from 1 to 86400000, such as `stop_when_idle_ms = 300`",
    );
}

#[test]
fn memory_has_to_suffice_for_the_buffers() {
    fails(
        &runtime("memory_mb = 16 #!"),
        "the packet buffers of the ports need 67 MB or more",
        "write `memory_mb = 80`, leave it out, or reduce `buffers`",
    );
    fails(
        &runtime("hugepages = true\nmemory_mb = 16 #!"),
        "the packet buffers of the ports need 40 MB or more",
        "write `memory_mb = 64`, leave it out, or reduce `buffers`",
    );
}
