//! The seeds, and that they find what is wrong. docs/simulation.md

use sluice_run::Bug;
use std::{
    env,
    process::{Command, Output},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

/// Seeds of one process: what a simulation leaves behind goes with it.
const AT_ONCE: u64 = 10;
/// Processes at once.
const WORKERS: usize = 2;
/// Seeds of the continuous integration: a minute of a debug build. `SLUICE_SIM_SEEDS` says another number.
const SEEDS: u64 = 300;
/// Seeds of which several runs are compared. Seed 93 once had two outcomes.
const COMPARED_FIRST: u64 = 86;
const COMPARED: u64 = 10;
/// Within so many seeds each planted bug is found. Which seeds find one changes with every build; the rarest need 60 on average.
const SEEDS_FOR_A_BUG: u64 = 300;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn simulate(first: u64, count: u64, word: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-sim"));
    command.args([first.to_string(), count.to_string()]).args(word);
    command.output().expect("the simulation runs")
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Runs `work` on each number below `count`, on a few threads.
fn spread(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    work(at);
                }
            });
        }
    });
}

#[test]
fn seeds_hold() {
    let (first, count) = (number("SLUICE_SIM_FIRST").unwrap_or(0), number("SLUICE_SIM_SEEDS").unwrap_or(SEEDS));
    if env::var_os("SLUICE_SIM_TRACE").is_some() {
        let told = simulate(first, 1, Some("trace"));
        eprintln!("{}", String::from_utf8_lossy(&told.stderr));
        println!("{}", String::from_utf8_lossy(&told.stdout));
        assert!(told.status.success(), "seed {first} fails");
        return;
    }
    let (wrong, held) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    spread(count.div_ceil(AT_ONCE) as usize, |at| {
        let from = first + at as u64 * AT_ONCE;
        let many = AT_ONCE.min(first + count - from);
        let output = simulate(from, many, None);
        let lines = lines(&output);
        let good = lines.iter().filter(|line| line.contains(" holds: ")).count();
        held.fetch_add(good as u64, Ordering::Relaxed);
        let mut wrong = wrong.lock().unwrap();
        wrong.extend(lines.into_iter().filter(|line| !line.contains(" holds: ")));
        if good < many as usize && wrong.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            wrong.push(format!("seeds {from} to {} ended early: {} {said}", from + many - 1, output.status));
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(
        wrong.is_empty(),
        "{} seeds fail:\n{}\nTo see one again: SLUICE_SIM_FIRST=N SLUICE_SIM_SEEDS=1 SLUICE_SIM_TRACE=1 \
         cargo test -p sluice-sim --test seeds seeds_hold -- --nocapture",
        wrong.len(),
        wrong.join("\n")
    );
    assert_eq!(held.into_inner(), count);
}

#[test]
fn same_seed_same_trace() {
    // From process to process addresses differ, and the keys and dice of std and tokio; and in one process what ran before.
    let told = Mutex::new(vec![Vec::new(); COMPARED as usize]);
    spread(2 * COMPARED as usize, |at| {
        let lines = lines(&simulate(COMPARED_FIRST + at as u64 / 2, 1, None));
        assert_eq!(lines.len(), 1);
        told.lock().unwrap()[at / 2].extend(lines);
    });
    let together = lines(&simulate(COMPARED_FIRST, COMPARED, None));
    assert_eq!(together.len(), COMPARED as usize);
    let told = told.into_inner().unwrap();
    for (alone, line) in told.iter().zip(&together) {
        assert_eq!((&alone[0], &alone[1]), (line, line));
    }
    assert_ne!(together[0].rsplit(' ').next(), together[1].rsplit(' ').next());
}

#[test]
fn planted_bugs_are_found() {
    let missed = Mutex::new(Vec::new());
    spread(Bug::ALL.len(), |at| {
        let bug = Bug::ALL[at];
        let found = (0..SEEDS_FOR_A_BUG).step_by(AT_ONCE as usize).find_map(|first| {
            let told = lines(&simulate(first, AT_ONCE, Some(&format!("{bug:?}"))));
            told.into_iter().find(|line| line.contains(" FAILS: "))
        });
        match found {
            Some(line) => println!("{bug:?}: {line}"),
            None => missed.lock().unwrap().push(bug),
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found within {SEEDS_FOR_A_BUG} seeds: {missed:?}");
}
