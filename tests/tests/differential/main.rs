//! The same random operations on a mount and on a local directory: the same results, error numbers and trees.
//!
//! `SLUICE_SEED` repeats a run, `SLUICE_DIFF_OPS` sets its length. With `SLUICE_TEST_LOCAL=1` both sides are local.
//! Every difference that is allowed is in [`allowed`], with its reason; what cannot be compared at all is in
//! [`apply::Outcome`].

mod allowed;
mod apply;
mod operation;

use apply::{Outcome, Side};
use operation::Generator;
use rustix::io::Errno;
use sluice_tests::{Place, Scratch, TreeOptions, compare_trees, number_from_env, seed};

const TREE: TreeOptions = TreeOptions { times: false, xattrs: true };
/// Whole trees are compared this often: rarely enough to be cheap, often enough to find the operation that did it.
const OPERATIONS_PER_COMPARISON: u64 = 250;
/// Operations shown before the one that failed.
const HISTORY_SHOWN: usize = 30;

#[test]
fn random_operations_give_the_same_as_a_local_directory() {
    let seed = seed("differential");
    let operations = number_from_env("SLUICE_DIFF_OPS", 3000);
    let mut place = Place::new();
    let local = Scratch::new();
    let mut generator = Generator::new(seed);
    let mut mounted_side = Side::new(place.root());
    let mut local_side = Side::new(local.path());
    let mut history = Vec::new();
    let mut succeeded = 0;
    for number in 0..operations {
        let operation = generator.next();
        history.push(format!("{number}: {operation:?}"));
        let ours = mounted_side.apply(&operation);
        let theirs = local_side.apply(&operation);
        generator.learn(&operation, theirs.is_ok());
        succeeded += u64::from(theirs.is_ok());
        if ours != theirs && allowed::reason(&operation, &ours, &theirs).is_none() {
            fail(seed, &history, &format!("mount: {}\nlocal: {}", show(&ours), show(&theirs)));
        }
        if number % OPERATIONS_PER_COMPARISON == OPERATIONS_PER_COMPARISON - 1 || number == operations - 1 {
            // Closing every file also lets the volume be unmounted: half of the comparisons see what was stored.
            let remount = number / OPERATIONS_PER_COMPARISON % 2 == 1 || number == operations - 1;
            if remount {
                drop((mounted_side, local_side));
                place.remount();
                mounted_side = Side::new(place.root());
                local_side = Side::new(local.path());
            }
            let difference = compare_trees(place.root(), local.path(), TREE);
            if !difference.is_empty() {
                let what = if remount { "after a remount" } else { "" };
                fail(seed, &history, &format!("the trees differ {what} (left: mount, right: local)\n{difference}"));
            }
        }
    }
    eprintln!("differential: {operations} operations, {succeeded} of them succeeded");
    assert!(succeeded * 3 > operations, "most operations failed: the test no longer tests much");
}

fn show(result: &Result<Outcome, Errno>) -> String {
    match result {
        Ok(outcome) => format!("{outcome:?}"),
        Err(e) => format!("{} ({e})", e.raw_os_error()),
    }
}

fn fail(seed: u64, history: &[String], what: &str) -> ! {
    let shown = history[history.len().saturating_sub(HISTORY_SHOWN)..].join("\n");
    panic!("{shown}\n{what}\nrepeat with SLUICE_SEED={seed}");
}
