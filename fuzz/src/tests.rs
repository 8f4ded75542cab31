//! A short deterministic run of each target: its first inputs, and mutations of those from a fixed seed.

use crate::corpus::{first_inputs, mutate};
use switch::Rng;

/// Number of mutations with which each target is run here; `make soak` and `make fuzz` run libFuzzer.
const MUTATIONS: usize = 300;

fn smoke(name: &str) {
    let run = crate::target(name).expect("a target of this name");
    let inputs = first_inputs(name);
    assert!(inputs.len() > 10, "{name} has {} first inputs", inputs.len());
    for input in &inputs {
        run(input);
    }
    let mut rng = Rng::new(1);
    for n in 0..MUTATIONS {
        let input = mutate(&inputs[n % inputs.len()], &inputs, &mut rng);
        // The panic of a target does not contain the input.
        let failed = std::panic::catch_unwind(|| run(&input)).is_err();
        assert!(!failed, "{name} fails with mutation {n}: {input:02x?}");
    }
}

macro_rules! smoke_tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                smoke(stringify!($name));
            }
        )*

        #[test]
        fn every_target_has_a_smoke_test() {
            assert_eq!(crate::TARGETS.map(|(name, _)| name), [$(stringify!($name)),*]);
        }
    };
}

smoke_tests!(classify cm decode forward impair management p4ce process rdmc rnic swordbox tunnel);
