use super::*;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

fn plan(workloads: &[Workload], variant: Variant) -> Plan {
    Plan {
        workloads: workloads.to_vec(),
        variants: vec![variant],
        offsets: vec![Offsets::Aligned, Offsets::Unaligned],
        threads: 2,
        file_bytes: 2 << 20,
        block_bytes: 4096,
        time: Duration::from_millis(30),
        metadata_files: 7,
        small_files: 205,
        rounds: 1,
    }
}

fn watch() -> Watch {
    Watch {
        clock: Arc::new(sluice_base::SystemClock::default()),
        stop: Arc::new(AtomicBool::new(false)),
        begins: Box::new(|_| ()),
        part: Box::new(|_| ()),
    }
}

fn place(dir: &Path) -> Place {
    Place::new(dir, "local".into(), "any".into()).unwrap()
}

/// Measures with a look at the directory between any two.
fn lines(plan: &Plan, watch: &Watch, dir: &Path, between: impl Fn(&Line, &Path)) -> anyhow::Result<Vec<Line>> {
    let (mut places, mut lines) = ([place(dir)], Vec::new());
    let root = fs::read_dir(dir)?.next().unwrap()?.path();
    measure(plan, &mut places, watch, &mut |line| {
        between(line, &root);
        lines.push(line.clone());
        Ok(())
    })?;
    assert_eq!(fs::read_dir(&root)?.count(), 0, "removed after each variant");
    let [place] = places;
    place.close()?;
    assert_eq!(fs::read_dir(dir)?.count(), 0);
    Ok(lines)
}

#[test]
fn corrected_reads_notice_bytes_that_were_not_written() {
    for workload in [Workload::SeqRead, Workload::RandRead] {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(&[Workload::SeqWrite, workload], Variant::Corrected);
        let sound = lines(&plan, &watch(), dir.path(), |_, _| ()).unwrap();
        assert!(sound.iter().all(|line| line.errors == 0), "{sound:?}");
        let empty = |line: &Line, root: &Path| {
            if line.workload == "seq-write" {
                let file = File::options().write(true).open(root.join("data-0")).unwrap();
                file.set_len(0).unwrap();
                file.set_len(2 << 20).unwrap();
            }
        };
        let lines = lines(&plan, &watch(), dir.path(), empty).unwrap();
        assert!(lines[1].errors > 0 && lines[1].written_part.unwrap() < 0.6, "{lines:?}");
        assert!(lines[1].first_error.as_ref().unwrap().contains("not what was written"), "{lines:?}");
    }
}

#[test]
fn corrected_files_have_no_holes_and_are_all_different() {
    let dir = tempfile::tempdir().unwrap();
    let look = |line: &Line, root: &Path| {
        if line.workload != "seq-write" {
            return;
        }
        let [first, second] = [0, 1].map(|at| fs::read(root.join(format!("data-{at}"))).unwrap());
        let mut blocks: Vec<_> = first.chunks(512).chain(second.chunks(512)).collect();
        assert_eq!(blocks.len(), 2 * 4096);
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 2 * 4096, "some are equal");
    };
    lines(&plan(&[Workload::SeqWrite], Variant::Corrected), &watch(), dir.path(), look).unwrap();
}

#[test]
fn each_variant_reads_what_it_is_said_to_read() {
    let dir = tempfile::tempdir().unwrap();
    let seed = lines(&plan(&[Workload::RandRead], Variant::Seed), &watch(), dir.path(), |_, _| ()).unwrap();
    assert_eq!((seed.len(), seed[0].written_part, seed[0].threads), (1, Some(0.0), 1), "holes alone: {seed:?}");
    let corrected = lines(&plan(&[Workload::RandRead], Variant::Corrected), &watch(), dir.path(), |_, _| ()).unwrap();
    assert_eq!(corrected.len(), 2);
    for (line, offsets) in corrected.iter().zip(["aligned", "unaligned"]) {
        assert_eq!((line.written_part, line.threads, line.offsets.as_deref()), (Some(1.0), 2, Some(offsets)));
        assert!(line.errors == 0 && line.ops > 0, "{line:?}");
    }
}

#[test]
fn operations_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    for (variant, threads) in [(Variant::Seed, 1), (Variant::Corrected, 2)] {
        let plan = plan(&[Workload::SeqWrite, Workload::SeqRead, Workload::Metadata, Workload::SmallFiles], variant);
        let lines = lines(&plan, &watch(), dir.path(), |_, _| ()).unwrap();
        let of = |workload: &str| lines.iter().find(|line| line.workload == workload).unwrap();
        let counted = ["seq-write", "seq-read", "metadata", "small-files"].map(|name| (of(name).ops, of(name).errors));
        assert_eq!(counted, [(4, 0), (4, 0), (3 * 7, 0), (4 * 205, 0)]);
        assert_eq!((of("metadata").threads, of("small-files").threads), (threads, 2));
        let bytes = of("seq-write").mb_per_s * of("seq-write").seconds * 1e6;
        assert!((bytes - (4 << 20) as f64).abs() < 1.0, "{bytes}");
    }
}

#[test]
fn what_is_stopped_leaves_nothing() {
    for workload in Workload::EVERY {
        let (dir, watch) = (tempfile::tempdir().unwrap(), watch());
        let mut slow = plan(&[workload], Variant::Corrected);
        (slow.time, slow.file_bytes, slow.metadata_files) = (Duration::from_secs(3600), 20 << 20, 100);
        let stop = watch.stop.clone();
        let watch = Watch { part: Box::new(move |_| stop.store(true, Ordering::Relaxed)), ..watch };
        let error = lines(&slow, &watch, dir.path(), |_, _| ()).unwrap_err();
        assert!(format!("{error:#}").contains("interrupted"), "{error:#}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn two_places_are_measured_in_turns() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let begun = Arc::new(Mutex::new(Vec::new()));
    let heard = begun.clone();
    let watch = Watch { begins: Box::new(move |what| heard.lock().unwrap().push(what)), ..watch() };
    let mut plan = plan(&[Workload::Metadata], Variant::Seed);
    plan.rounds = 2;
    let mut lines = Vec::new();
    let mut places = [place(one.path()), place(two.path())];
    measure(&plan, &mut places, &watch, &mut |line| {
        lines.push(line.clone());
        Ok(())
    })
    .unwrap();
    let order: Vec<_> = begun.lock().unwrap().iter().map(|what| what.contains(one.path().to_str().unwrap())).collect();
    assert_eq!(order, [true, false, true, false]);
    assert_eq!(lines.len(), 2);
    for line in lines {
        assert_eq!((line.rounds, line.ops_per_s_of_rounds.len(), line.ops), (2, 2, 21));
        assert_eq!(line.ops_per_s, line.ops_per_s_of_rounds.iter().sum::<f64>() / 2.0);
    }
}

#[test]
fn an_operation_that_cannot_be_done_is_counted_and_ends_at_some_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut slow = plan(&[Workload::SeqWrite, Workload::RandRead], Variant::Corrected);
    slow.time = Duration::from_secs(3600);
    // Every read comes to its end too early; the round is over after 1,000 of them by each thread.
    let cut = |line: &Line, root: &Path| {
        if line.workload == "seq-write" {
            for at in 0..2 {
                let file = File::options().write(true).open(root.join(format!("data-{at}"))).unwrap();
                file.set_len(100).unwrap();
                file.write_all_at(b"x", 0).unwrap();
            }
        }
    };
    let lines = lines(&slow, &watch(), dir.path(), cut).unwrap();
    assert!(lines[1].errors >= 2000 && lines[1].ops <= 2000, "{lines:?}");
}

#[test]
fn medians() {
    assert_eq!([median(&[]), median(&[3.0]), median(&[5.0, 1.0]), median(&[9.0, 1.0, 2.0])], [0.0, 3.0, 3.0, 2.0]);
}
