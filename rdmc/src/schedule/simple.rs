//! Sequential send, chain send and binomial tree (RDMC, section 4.3). All functions return pairs of the other
//! node and the block.

type Pair = Option<(u32, u32)>;

pub(super) fn sequential_steps(n: u32, k: u32) -> u64 {
    u64::from(k) * u64::from(n - 1)
}

pub(super) fn sequential_send(k: u32, node: u32, step: u64) -> Pair {
    let to = step / u64::from(k) + 1;
    (node == 0).then_some((to as u32, (step % u64::from(k)) as u32))
}

pub(super) fn sequential_receive(k: u32, node: u32, step: u64) -> Pair {
    let (to, block) = sequential_send(k, 0, step)?;
    (to == node).then_some((0, block))
}

pub(super) fn chain_steps(n: u32, k: u32) -> u64 {
    u64::from(k) + u64::from(n) - 2
}

/// Node i sends block b at step i + b.
pub(super) fn chain_send(n: u32, k: u32, node: u32, step: u64) -> Pair {
    let block = step.checked_sub(node.into())?;
    (node + 1 < n && block < k.into()).then_some((node + 1, block as u32))
}

pub(super) fn chain_receive(k: u32, node: u32, step: u64) -> Pair {
    let block = (step + 1).checked_sub(node.into())?;
    (node > 0 && block < k.into()).then(|| (node - 1, block as u32))
}

pub(super) fn tree_steps(n: u32, k: u32) -> u64 {
    u64::from(k) * u64::from(n.next_power_of_two().trailing_zeros())
}

/// In phase p, which has k steps, each node i below 2^p sends all blocks to node i + 2^p.
pub(super) fn tree_send(n: u32, k: u32, node: u32, step: u64) -> Pair {
    let (phase, block) = (step / u64::from(k), step % u64::from(k));
    let senders = 1_u32 << phase;
    (node < senders && senders < n - node).then(|| (node + senders, block as u32))
}

pub(super) fn tree_receive(k: u32, node: u32, step: u64) -> Pair {
    let phase = step / u64::from(k);
    (node > 0 && u64::from(node.ilog2()) == phase).then(|| (node ^ 1 << phase, (step % u64::from(k)) as u32))
}
