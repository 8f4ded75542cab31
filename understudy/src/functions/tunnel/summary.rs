//! Describes the tunnels of `[tunnel]`.

use super::TunnelConfig;
use switch::tunnel::InnerForwarding;

pub(crate) fn lines(config: &TunnelConfig) -> Vec<(&'static str, String)> {
    let ends: Vec<_> = config.endpoints.iter().map(ToString::to_string).collect();
    let mac = config.mac.map_or("the first port's MAC address".into(), |mac| mac.to_string());
    let onward = match &config.inner_forwarding {
        InnerForwarding::Function => "the router sends inner packets on".into(),
        InnerForwarding::NextHops(hops) => format!("inner packets go to {} next hops", hops.len()),
    };
    let sources = config.sources.len();
    vec![("tunnels", format!("end at {} ({mac}), those of {sources} sources; {onward}", ends.join(", ")))]
}
