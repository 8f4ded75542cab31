//! Huge pages: number, size and mount point.

use super::{Finding, Ports};
use crate::machine::Machine;

const TOPIC: &str = "huge pages";
const FOLDER: &str = "/sys/kernel/mm/hugepages";
/// Reservation that the advice suggests, in megabytes
const SUGGESTED_MB: u64 = 1024;

/// Huge pages of one size.
struct Pool {
    folder: String,
    kb: u64,
    reserved: u64,
    free: u64,
}

pub(super) fn examine(machine: &Machine) -> Vec<Finding> {
    vec![reserved(machine), mounted(machine)]
}

fn pools(machine: &Machine) -> Vec<Pool> {
    let pool = |name: String| {
        let kb = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let folder = format!("{FOLDER}/{name}");
        let number = |file: &str| machine.read(format!("{folder}/{file}")).and_then(|text| text.parse().ok());
        Some(Pool {
            kb,
            reserved: number("nr_hugepages").unwrap_or(0),
            free: number("free_hugepages").unwrap_or(0),
            folder,
        })
    };
    machine.list(FOLDER).into_iter().filter_map(pool).collect()
}

fn reserved(machine: &Machine) -> Finding {
    let pools = pools(machine);
    // Only the smallest pages can be reserved while the machine runs.
    let Some(small) = pools.iter().min_by_key(|pool| pool.kb) else {
        return Finding::warning(
            TOPIC,
            Ports::Hardware,
            "no huge pages are visible: this kernel lacks them, or hides them from a container",
        );
    };
    let reserve = |pages: u64| format!("echo {pages} > {}/nr_hugepages", small.folder);
    let suggested = (SUGGESTED_MB * 1024).div_ceil(small.kb.max(1));
    if pools.iter().all(|pool| pool.reserved == 0) {
        let message = "none are reserved; hardware ports need them, virtual ports do not";
        return Finding::warning(TOPIC, Ports::Hardware, message).command(reserve(suggested));
    }
    let shown: Vec<_> = pools
        .iter()
        .filter(|pool| pool.reserved > 0)
        .map(|pool| format!("{} of {}, {} of them free", pool.reserved, size(pool.kb), pool.free))
        .collect();
    let shown = shown.join("; ");
    if pools.iter().all(|pool| pool.free == 0) {
        let message = format!("{shown}: other programs use all of them");
        return Finding::warning(TOPIC, Ports::Hardware, message)
            .command(reserve(small.reserved + suggested));
    }
    Finding::ok(TOPIC, shown)
}

fn mounted(machine: &Machine) -> Finding {
    let mounts = machine.read("/proc/mounts").unwrap_or_default();
    let mount_point = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let mount_point = words.next()?;
        (words.next()? == "hugetlbfs").then(|| mount_point.to_owned())
    });
    match mount_point {
        Some(mount_point) => Finding::ok(TOPIC, format!("hugetlbfs is mounted on {mount_point}")),
        None => Finding::warning(TOPIC, Ports::Hardware, "no hugetlbfs is mounted")
            .command("mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages"),
    }
}

fn size(kb: u64) -> String {
    match kb {
        kb if kb >= 1 << 20 => format!("{} GB", kb >> 20),
        kb if kb >= 1 << 10 => format!("{} MB", kb >> 10),
        kb => format!("{kb} kB"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{FakeMachine, only_finding};
    use super::*;

    const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

    fn examine_with(reserved: &str, free: &str) -> Vec<Finding> {
        let fake = FakeMachine::new(&[]);
        fake.write(&format!("{POOL}/nr_hugepages"), reserved);
        fake.write(&format!("{POOL}/free_hugepages"), free);
        examine(&fake.machine())
    }

    #[test]
    fn unreserved_and_used_up_pages_are_warnings() {
        assert_eq!(
            only_finding(&examine_with("512\n", "500\n"), "512 of 2 MB, 500 of them free").state,
            State::Ok
        );
        let none = examine_with("0\n", "0\n");
        let none = only_finding(&none, "none are reserved");
        assert_eq!(none.state, State::Warning(Ports::Hardware));
        assert_eq!(none.command.as_deref(), Some(&*format!("echo 512 > {POOL}/nr_hugepages")));
        let taken = examine_with("8\n", "0\n");
        let taken = only_finding(&taken, "use all of them");
        assert_eq!(taken.command.as_deref(), Some(&*format!("echo 520 > {POOL}/nr_hugepages")));
        assert_eq!(
            only_finding(&examine(&FakeMachine::new(&[]).machine()), "no huge pages are visible").command,
            None
        );
    }

    #[test]
    fn a_missing_mount_is_a_warning() {
        let fake = FakeMachine::new(&[(
            "/proc/mounts",
            "proc /proc proc rw 0 0\nh /dev/hugepages hugetlbfs rw 0 0\n",
        )]);
        assert_eq!(only_finding(&examine(&fake.machine()), "is mounted on /dev/hugepages").state, State::Ok);
        fake.write("/proc/mounts", "proc /proc proc rw 0 0\n");
        let findings = examine(&fake.machine());
        let missing = only_finding(&findings, "no hugetlbfs");
        assert_eq!(missing.state, State::Warning(Ports::Hardware));
        assert!(missing.command.as_ref().is_some_and(|command| command.contains("mount -t hugetlbfs")));
    }

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        assert_eq!([size(64), size(2048), size(1 << 20)], ["64 kB", "2 MB", "1 GB"]);
    }
}
