use super::figure::{Axis, Distribution, Outcome, Series, Unit, Verdict};
use super::report::{self, Content};
use super::*;
use std::collections::BTreeSet;

const SETTINGS: Settings = Settings { quick: true, seed: 1 };

fn machine(program: &str) -> Machine {
    Machine {
        program: program.into(),
        commit: Some("abc".into()),
        cpu: "a CPU <of its own> & more".into(),
        cpus: 2,
        memory_mib: 1,
        kernel: "6.1".into(),
        dpdk: "22.11".into(),
    }
}

/// Returns a result with all characters that are special in HTML and Markdown.
fn outcome(holds: bool) -> Outcome {
    let mut outcome = Outcome::default();
    let series = Series::ours("a < b & \"c\" | d", [(1.0, 1.0), (2.0, 1.0 / 3.0)]);
    outcome.checks = vec![
        shape::within("x > 1", if holds { 2.0 } else { 0.5 }, 1.0..=3.0),
        shape::falls("y", &series, 0.0),
    ];
    outcome.value("a | b <i>", Some("<1>"), 1e-9);
    outcome.plot(
        "P < Q",
        Axis::log("x & y", Unit::Number),
        Axis::linear("<y>", Unit::Number),
        vec![series, Series::paper("p", [(1.0, 2.0)])],
    );
    outcome.histograms = vec![Distribution { name: "h".into(), counts: vec![(1_000, 3), (2_000, 1)] }];
    outcome
}

fn record(program: &str, figure: &Figure) -> Record {
    Record {
        program: program.into(),
        commit: None,
        settings: SETTINGS,
        command: figure.fresh_command(&SETTINGS),
        cpu_seconds: 0.3,
        outcome: outcome(true),
    }
}

#[test]
fn every_figure_can_be_selected_and_is_described() {
    let mut seen = BTreeSet::new();
    for figure in figures() {
        assert!(seen.insert((figure.paper, figure.id)), "{figure} exists twice");
        assert!(!figure.title.is_empty(), "{figure}");
        let which = PaperSelection::from_str(figure.paper.key(), false).unwrap();
        let found = selected(&[which], &[figure.id.to_owned()]).unwrap();
        assert!(found.len() == 1 && core::ptr::eq(found[0], figure), "{figure}");
        match figure.reproduction {
            Reproduction::Omitted(why) => assert!(!why.is_empty(), "{figure}"),
            Reproduction::Measured { how, .. } => {
                assert!(!how.is_empty() && !figure.paper_result.is_empty(), "{figure}");
            }
        }
        let command = figure.command(&SETTINGS);
        assert_eq!(
            command,
            format!("understudy bench paper {} --only {} --quick", figure.paper.key(), figure.id)
        );
    }
    for paper in Paper::ALL {
        let measured = figures().filter(|figure| {
            figure.paper == paper && matches!(figure.reproduction, Reproduction::Measured { .. })
        });
        assert!(measured.count() >= 5, "{paper:?}");
    }
    assert_eq!(selected(&[PaperSelection::All], &[]).unwrap().len(), seen.len());
    let error = selected(&[PaperSelection::P4ce], &["fig99".to_owned()]).unwrap_err();
    assert!(format!("{error:?}").contains("fig5"), "{error:?}");
}

/// A command line with the arguments of `bench paper`.
#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: PaperArgs,
}

#[test]
fn selecting_only_figures_that_are_not_shown_is_an_error() {
    let is_shown = |figure: &&&Figure| matches!(figure.reproduction, Reproduction::Measured { .. });
    let all: Vec<_> = figures().collect();
    let (shown, not): (Vec<_>, Vec<_>) = all.iter().partition(is_shown);
    let (shown, not): (&Figure, &Figure) = (shown[0], not[0]);
    let Reproduction::Omitted(why) = not.reproduction else { panic!("not shown") };
    assert_eq!(reasons_not_shown(&[shown]).unwrap(), Vec::<String>::new());
    assert_eq!(reasons_not_shown(&[shown, not]).unwrap(), [format!("{not} is not shown: {why}")]);
    let error = reasons_not_shown(&[not, not]).unwrap_err().to_string();
    assert!(
        error.starts_with("none of the selected figures can be measured") && error.contains(why),
        "{error}"
    );
    // The whole command: nothing is measured, and no report is written.
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results");
    let words = ["paper", not.paper.key(), "--only", not.id, "--results", results.to_str().unwrap()];
    let line = <Line as clap::Parser>::parse_from(words);
    assert!(run(&line.args, Path::new("/proc/self/exe"), "22.11").is_err());
    assert!(!results.exists());
}

#[test]
fn verdicts_follow_from_checks() {
    assert_eq!(outcome(true).verdict(), Verdict::Holds);
    assert_eq!(outcome(false).verdict(), Verdict::Partly);
    let mut none = outcome(false);
    none.checks.truncate(1);
    assert_eq!(none.verdict(), Verdict::No);
    assert_eq!(Outcome::default().verdict(), Verdict::No, "a result without checks does not hold");
}

static RUNS: AtomicUsize = AtomicUsize::new(0);
const COUNTED: Figure = Figure::measured((Paper::P4ce, "counted", "t"), "s", "h", |_| {
    RUNS.fetch_add(1, Ordering::Relaxed);
    Ok(outcome(true))
});
const FAILING: Figure =
    Figure::measured((Paper::P4ce, "failing", "t"), "s", "h", |_| Err(miette!("it is broken")));

#[test]
fn results_are_reused_for_the_same_program_and_settings() {
    static FIGURE: Figure = COUNTED;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p4ce-counted.quick.json");
    let go = |program: &str, settings: Settings, fresh| {
        let store = Store::open(folder.path(), program).unwrap();
        let failed = measure(&[&FIGURE], &settings, &store, &machine(program), fresh, 2).unwrap();
        let record = store.load(&FIGURE, &settings).unwrap();
        // The recorded command measures again even if there is a result.
        assert!(failed.is_empty() && record.command.ends_with(" --fresh"), "{}", record.command);
        RUNS.load(Ordering::Relaxed)
    };
    assert_eq!(go("one", SETTINGS, false), 1);
    assert_eq!(go("one", SETTINGS, false), 1);
    assert_eq!(go("one", Settings { seed: 2, ..SETTINGS }, false), 2);
    assert_eq!(go("one", Settings { quick: false, seed: 2 }, false), 3);
    assert_eq!(
        go("one", Settings { seed: 2, ..SETTINGS }, false),
        3,
        "results of quick and full runs are separate"
    );
    assert_eq!(go("another", Settings { seed: 2, ..SETTINGS }, false), 4);
    assert_eq!(go("another", Settings { seed: 2, ..SETTINGS }, true), 5);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert_eq!(go("another", Settings { seed: 2, ..SETTINGS }, false), 6, "a truncated file is ignored");
}

#[test]
fn a_failed_experiment_is_reported_and_not_stored() {
    static FIGURE: Figure = FAILING;
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "one").unwrap();
    let failed = measure(&[&FIGURE], &SETTINGS, &store, &machine("one"), false, 1).unwrap();
    assert_eq!((failed.len(), failed[0].0.id, failed[0].1.as_str()), (1, "failing", "it is broken"));
    assert!(store.load(&FIGURE, &SETTINGS).is_none());
}

#[test]
fn records_are_read_back_unchanged() {
    let figure = figures().next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "one").unwrap();
    let record = record("one", figure);
    store.save(figure, &record).unwrap();
    assert_eq!(store.load(figure, &SETTINGS), Some(record));
    store.remove(figure, &SETTINGS).unwrap();
    store.remove(figure, &SETTINGS).unwrap();
    assert_eq!(store.load(figure, &SETTINGS), None);
}

/// Writes a report with all states: measured, not measured yet, failed, and not shown.
fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (store, machine) = (Store::open(folder.path(), "one").unwrap(), machine("one"));
    let measured: Vec<_> =
        figures().filter(|figure| matches!(figure.reproduction, Reproduction::Measured { .. })).collect();
    for figure in &measured[2..] {
        store.save(figure, &record("one", figure)).unwrap();
    }
    let in_part = Record { outcome: outcome(false), ..record("one", measured[2]) };
    store.save(measured[2], &in_part).unwrap();
    let failed = [(measured[0], "it <fell> & broke".to_owned())];
    let summary = report::write(figures(), &store, &SETTINGS, &machine, &failed).unwrap();
    assert!(
        summary.contains("figures hold, 1 in part, 1 failed, 1 not measured yet\n\n1pipe")
            && summary.contains("report.html"),
        "{summary}"
    );
    let content = Content::new(figures(), &store, &SETTINGS, &machine, &failed);
    assert_eq!(content.figures.len(), figures().count());
    folder
}

#[test]
fn the_page_is_well_formed_and_self_contained() {
    let folder = written();
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(&page, options).unwrap();
    let mut ids = BTreeSet::new();
    for node in document.descendants() {
        for attribute in node.attributes() {
            match attribute.name() {
                "src" | "srcset" | "data" | "action" => panic!("{attribute:?}"),
                "href" => assert!(attribute.value().starts_with('#'), "{attribute:?}"),
                "id" => assert!(ids.insert(attribute.value().to_owned()), "{attribute:?} exists twice"),
                _ => {}
            }
        }
        assert!(!["script", "link", "iframe", "img"].contains(&node.tag_name().name()), "{node:?}");
    }
    for outside in ["http://", "https://", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let links = document.descendants().filter_map(|node| node.attribute("href"));
    assert!(links.into_iter().all(|link| ids.contains(&link[1..])));
    assert!(document.descendants().filter(|node| node.has_tag_name("svg")).count() > 10);
    let texts: String = document.descendants().filter_map(|node| node.text()).collect();
    for figure in figures() {
        assert!(texts.contains(figure.title), "{figure}");
        if let Reproduction::Omitted(why) = figure.reproduction {
            assert!(texts.contains(why), "{figure}");
        }
    }
    assert!(texts.contains("it <fell> & broke") && texts.contains("a CPU <of its own> & more"));
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("width=device-width"));
}

/// In every form of the report, the first thing is how many figures hold.
#[test]
fn the_report_begins_with_the_number_of_figures_that_hold() {
    let folder = written();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let all = figures().filter(|figure| matches!(figure.reproduction, Reproduction::Measured { .. })).count();
    let headline = format!("{} of {all} figures hold, 1 in part, 1 failed, 1 not measured yet", all - 3);
    assert!(read("report.md").starts_with(&format!("# {headline}\n")));
    let page = read("report.html");
    let body = page.split("<body>").nth(1).unwrap();
    assert!(body.trim_start().starts_with(&format!("<h1>{headline}</h1>")), "{body:.200}");
    let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!(json["headline"], headline);
    assert_eq!((&json["verdicts"]["holds"], &json["verdicts"]["partly"]), (&(all - 3).into(), &1.into()));
}

/// Beside a figure that does not hold in all checks, there are a reason and a plan, and beside no other one.
#[test]
fn figures_in_part_have_a_reason_and_a_plan() {
    let folder = written();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
    let figures = json["figures"].as_array().unwrap();
    let with: Vec<_> = figures.iter().filter(|figure| !figure["reason"].is_null()).collect();
    assert!(with.len() == 1 && with[0]["verdict"] == "partly", "{with:?}");
    for part in ["why", "plan"] {
        assert!(!with[0]["reason"][part].as_str().unwrap().is_empty(), "{with:?}");
    }
    assert_eq!(read("report.html").matches(">Why<").count(), 1);
    assert_eq!(read("report.md").matches("- Plan: ").count(), 1);
}

/// The figures with a reason are those with a check that fails in a quick run (`tests/report.txt`, which
/// `scripts/check_report.py` compares with a run) or in the full run that `docs/results.md` describes.
#[test]
fn the_figures_with_failing_checks_have_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let mut failing: BTreeSet<String> = BTreeSet::new();
    failing.extend(read("tests/report.txt").lines().map(|line| line.split(':').next().unwrap().to_owned()));
    assert!(failing.len() > 3, "{failing:?}");
    let results = read("docs/results.md");
    let table = results.split("### Checks that do not hold").nth(1).unwrap();
    let rows = table.trim_start().lines().take_while(|line| line.starts_with('|')).skip(2);
    failing.extend(rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let paper = Paper::ALL.into_iter().find(|paper| paper.name() == cells[1]).unwrap();
        format!("{} {}", paper.key(), cells[2].trim_matches('`'))
    }));
    let with_reason: BTreeSet<_> =
        figures().filter(|figure| figure.in_part.is_some()).map(ToString::to_string).collect();
    assert_eq!(with_reason, failing);
    for reason in figures().filter_map(|figure| figure.in_part) {
        assert!(reason.why.len() > 40 && !reason.plan.is_empty(), "{reason:?}");
    }
}

#[test]
fn markdown_and_json_have_every_figure() {
    let folder = written();
    let markdown = std::fs::read_to_string(folder.path().join("report.md")).unwrap();
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("report.json")).unwrap()).unwrap();
    let all = json["figures"].as_array().unwrap();
    assert_eq!(all.len(), figures().count());
    for (figure, value) in figures().zip(all) {
        assert!(markdown.contains(&format!("{}: {}", figure.id, figure.title)), "{figure}");
        assert_eq!((&value["paper"], &value["figure"]), (&figure.paper.key().into(), &figure.id.into()));
        let states = ["verdict", "not_measured_yet", "failed", "not_shown"];
        assert_eq!(states.iter().filter(|state| !value[**state].is_null()).count(), 1, "{value}");
    }
    assert!(all.iter().any(|value| value["outcome"]["plots"][0]["series"][0]["points"][0][0] == 1.0));
    assert!(markdown.contains("a \\| b <i>"), "cells are escaped");
    let histograms: Vec<_> = std::fs::read_dir(folder.path().join("histograms")).unwrap().collect();
    let text = std::fs::read_to_string(histograms[0].as_ref().unwrap().path()).unwrap();
    assert!(text.contains("Total count    =            4]"), "{text}");
}

/// Runs a figure that takes no time, from schedules to the verdict.
#[test]
fn figure_4b_of_rdmc_holds() {
    let figure = figures().find(|figure| (figure.paper, figure.id) == (Paper::Rdmc, "fig4b")).unwrap();
    let Reproduction::Measured { run, .. } = figure.reproduction else { panic!("measured") };
    let outcome = run(&SETTINGS).unwrap();
    assert_eq!(outcome.verdict(), Verdict::Holds, "{:?}", outcome.checks);
    assert!(outcome.plots[0].series.iter().all(|series| series.points.len() == 8));
}

#[test]
fn computed_figures_are_independent_of_the_seed() {
    let cosmos = figures().find(|figure| (figure.paper, figure.id) == (Paper::Rdmc, "fig9")).unwrap();
    assert!(row(cosmos).ends_with(" [computed]"), "{}", row(cosmos));
    let computed: Vec<_> = figures()
        .filter(|figure| matches!(figure.reproduction, Reproduction::Measured { random: false, .. }))
        .collect();
    let ids: Vec<_> = computed.iter().map(|figure| figure.id).collect();
    assert_eq!(ids, ["fig4a", "fig4b", "fig6", "fig8", "fig10a"]);
    let figure = computed[1];
    let Reproduction::Measured { run, .. } = figure.reproduction else { panic!("measured") };
    assert_eq!(run(&SETTINGS).unwrap(), run(&Settings { seed: 2, ..SETTINGS }).unwrap());
    assert!(row(figure).ends_with("[computed: the same with any seed]"), "{}", row(figure));
}

/// Figures whose checks take a few seconds together; `understudy bench paper` runs all figures
const QUICK: [(Paper, &str); 7] = [
    (Paper::P4ce, "fig7"),
    (Paper::Rdmc, "fig4a"),
    (Paper::Rdmc, "fig6"),
    (Paper::Rdmc, "fig7"),
    (Paper::Rdmc, "fig8"),
    (Paper::Rdmc, "fig9"),
    (Paper::Rdmc, "fig10a"),
];

#[test]
fn checks_of_quick_figures_hold() {
    std::thread::scope(|scope| {
        for (paper, id) in QUICK {
            scope.spawn(move || {
                let figure = figures().find(|figure| (figure.paper, figure.id) == (paper, id)).unwrap();
                let Reproduction::Measured { run, .. } = figure.reproduction else { panic!("measured") };
                let outcome = run(&SETTINGS).unwrap();
                assert_eq!(outcome.verdict(), Verdict::Holds, "{figure}: {:?}", outcome.checks);
            });
        }
    });
}

/// The seed determines when hosts send, to which hosts, and their clocks, even if the network loses nothing.
#[test]
fn different_seeds_give_different_runs() {
    let stalls = |seed| {
        let failures = crate::onepipe::demo::failures(representative::Incarnation::Chip, seed).unwrap();
        failures.iter().map(|failed| (failed.delivered, failed.stall)).collect::<Vec<_>>()
    };
    assert_eq!(stalls(1), stalls(1));
    assert_ne!(stalls(1), stalls(2));
}
