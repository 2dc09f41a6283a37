//! Everything in its order, and the medians.

use super::{
    hand::{Tally, Watch},
    large::{Done, Job},
    place::Place,
    plan::{Offsets, Plan, Variant, Workload},
    report::Line,
};
use anyhow::Context;

/// Measures everything of the plan at each place, in turns; hands each line to `each` as soon as its rounds are over.
///
/// # Errors
/// When something cannot be made ready, or the watch says stop. Operations that fail are counted.
pub fn measure(
    plan: &Plan,
    places: &mut [Place],
    watch: &Watch,
    each: &mut dyn FnMut(&Line) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for variant in &plan.variants {
        for workload in variant.order().into_iter().filter(|workload| plan.workloads.contains(workload)) {
            for offsets in offsets_of(plan, workload, *variant) {
                for line in rounds(plan, places, watch, (workload, *variant, offsets))? {
                    each(&line)?;
                }
            }
        }
        for place in &mut *places {
            place.keep_only("").with_context(|| format!("removing files in {}", place.dir.display()))?;
        }
    }
    Ok(())
}

/// `None` where nothing is chosen at random.
fn offsets_of(plan: &Plan, workload: Workload, variant: Variant) -> Vec<Option<Offsets>> {
    match (workload.is_random(), variant) {
        (false, _) => vec![None],
        (true, Variant::Seed) => vec![Some(Offsets::Unaligned)],
        (true, Variant::Corrected) => plan.offsets.iter().copied().map(Some).collect(),
    }
}

/// A B A B.
fn rounds(
    plan: &Plan,
    places: &mut [Place],
    watch: &Watch,
    what: (Workload, Variant, Option<Offsets>),
) -> anyhow::Result<Vec<Line>> {
    let (workload, variant, offsets) = what;
    let mut done: Vec<(Vec<Done>, Option<u64>)> = places.iter().map(|_| Default::default()).collect();
    for round in 0..plan.rounds {
        for (place, (done, unstored)) in places.iter_mut().zip(&mut done) {
            let dir = place.dir.display().to_string();
            let name = [variant.name(), workload.name(), offsets.map_or("", Offsets::name)].join(" ");
            (watch.begins)(format!("{} in {dir}, {} of {}", name.trim_end(), round + 1, plan.rounds));
            let offsets = offsets.unwrap_or(Offsets::Aligned);
            let mut job = Job { plan, place, watch, workload, variant, offsets, round };
            let result = if workload.is_large() { job.large() } else { job.small() };
            done.push(result.with_context(|| format!("{} in {dir}", name.trim_end()))?);
            *unstored = (*unstored).max(place.unstored.as_ref().and_then(|unstored| unstored()));
        }
    }
    let line =
        |(place, (done, unstored_bytes)): (&Place, (Vec<Done>, _))| Line { unstored_bytes, ..line(place, &done, what) };
    Ok(places.iter().zip(done).map(line).collect())
}

fn line(place: &Place, done: &[Done], (workload, variant, offsets): (Workload, Variant, Option<Offsets>)) -> Line {
    let each = |number: &dyn Fn(&Tally) -> f64| done.iter().map(|done| number(&done.tally)).collect::<Vec<f64>>();
    let by_time = |tally: &Tally, number: f64| number / tally.took.as_secs_f64().max(1e-9);
    let mb_per_s = each(&|tally| by_time(tally, tally.bytes as f64 / 1e6));
    let ops_per_s = each(&|tally| by_time(tally, tally.times.count() as f64));
    Line {
        workload: workload.name().into(),
        variant: variant.name().into(),
        offsets: offsets.map(|offsets| offsets.name().into()),
        dir: place.dir.display().to_string(),
        tier: place.tier.clone(),
        unstored_bytes: None,
        fs: place.fs.clone(),
        threads: done.first().map_or(0, |done| done.threads),
        rounds: done.len(),
        ops: median(&each(&|tally| tally.times.count() as f64)) as u64,
        seconds: median(&each(&|tally| tally.took.as_secs_f64())),
        mb_per_s: median(&mb_per_s),
        ops_per_s: median(&ops_per_s),
        p50_us: median(&each(&|tally| tally.times.quantile_us(0.5))),
        p95_us: median(&each(&|tally| tally.times.quantile_us(0.95))),
        p99_us: median(&each(&|tally| tally.times.quantile_us(0.99))),
        max_us: each(&|tally| tally.times.max_us()).into_iter().fold(0.0, f64::max),
        errors: done.iter().map(|done| done.tally.errors).sum(),
        first_error: done.iter().find_map(|done| done.tally.first_error.clone()),
        written_part: done.iter().filter_map(|done| done.written_part).reduce(f64::min),
        mb_per_s_of_rounds: mb_per_s,
        ops_per_s_of_rounds: ops_per_s,
    }
}

/// Of an even number the middle of the two in the middle.
fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len.is_multiple_of(2) => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
        len => sorted[len / 2],
    }
}

#[cfg(test)]
mod tests;
