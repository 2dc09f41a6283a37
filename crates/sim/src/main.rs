//! Runs seeds: `sluice-sim FIRST COUNT [trace | steps | BUG]`. One line for each on standard output. With the name of a bug it is planted, and
//! the first seed that finds it is the last.

#![forbid(unsafe_code)]

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use sluice_run::Bug;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(first), Some(count)) = (number(0), number(1)) else {
        eprintln!("usage: sluice-sim FIRST COUNT [trace | steps | BUG]");
        return ExitCode::FAILURE;
    };
    let word = arguments.get(2).map(String::as_str);
    let (traced, told_steps) = (word == Some("trace"), word == Some("steps"));
    let bug = Bug::ALL.into_iter().find(|bug| word == Some(&format!("{bug:?}")));
    if word.is_some() && !traced && !told_steps && bug.is_none() {
        eprintln!("bugs: {:?}", Bug::ALL);
        return ExitCode::FAILURE;
    }
    bug.into_iter().for_each(Bug::plant);
    stay_on_one_cpu();
    if told_steps {
        sluice_run::simulation::tell_steps();
    }
    if traced {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .without_time()
            .with_max_level(tracing::Level::DEBUG)
            .init();
    }
    // A panic ends its simulation, which tells it.
    std::panic::set_hook(Box::new(move |panic| {
        if traced {
            eprintln!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
        } else {
            eprintln!("{panic}");
        }
    }));
    let mut status = ExitCode::SUCCESS;
    for seed in first..first + count {
        let told = sluice_sim::run(seed, traced);
        let (steps, trace, time) = (told.steps, told.trace, told.time.as_secs());
        match told.result {
            Ok(()) => println!("seed {seed} holds: {steps} steps, {time} s, trace {trace:016x}"),
            Err(why) => {
                println!("seed {seed} FAILS: {why} ({steps} steps, {time} s, trace {trace:016x})");
                status = ExitCode::FAILURE;
                if bug.is_some() {
                    break;
                }
            }
        }
    }
    // The threads of simulations that are over are asleep.
    std::process::exit(if status == ExitCode::SUCCESS { 0 } else { 1 });
}

/// One thread runs at a time, and handing over to one on another CPU means waking that CPU first.
fn stay_on_one_cpu() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    // Only for speed: where it is forbidden, all goes on as before.
    let _ = sched_setaffinity(None, &here);
}
