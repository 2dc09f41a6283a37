//! Runs beside each other as a picture.

use super::{Line, Workload};
use anyhow::anyhow;
use plotters::prelude::*;
use std::path::Path;

/// Room for one bar and its name, in pixels.
const BAR: u32 = 30;
/// Of a workload.
const HEIGHT: u32 = 340;
/// Names of runs are cut.
const NAME_CHARS: usize = 24;

/// A bar, or the room between two groups of them.
struct Bar<'a> {
    run: usize,
    name: &'a str,
    line: Option<&'a Line>,
}

/// Draws runs, which are named, into an SVG file: a row for each workload, on the left its rate, on the right the times of its operations.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(runs: &[(String, Vec<Line>)], file: &Path) -> anyhow::Result<()> {
    let rows: Vec<_> = Workload::EVERY.iter().map(|workload| (*workload, bars_of(*workload, runs))).collect();
    let rows: Vec<_> = rows.into_iter().filter(|(_, bars)| !bars.is_empty()).collect();
    let most = rows.iter().map(|(_, bars)| bars.len()).max().unwrap_or(1).max(8) as u32;
    let size = (2 * (120 + BAR * most), HEIGHT * rows.len().max(1) as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| anyhow!("drawing {}: {error}", file.display());
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    for (area, (workload, bars)) in root.split_evenly((rows.len().max(1), 2)).chunks(2).zip(&rows) {
        let (unit, rate): (_, fn(&Line) -> f64) = match workload {
            Workload::SeqWrite | Workload::SeqRead => ("MB/s", |line| line.mb_per_s),
            _ => ("operations/s", |line| line.ops_per_s),
        };
        let title = format!("{}, {unit}", workload.name());
        panel(&area[0], bars, &title, rate, None).map_err(|error| failed(&error))?;
        let title = format!("{}, us: p50 (line: p99)", workload.name());
        panel(&area[1], bars, &title, |line| line.p50_us, Some(|line| line.p99_us)).map_err(|error| failed(&error))?;
    }
    root.present().map_err(|error| failed(&error))
}

/// The runs of each form of a workload beside each other.
fn bars_of(workload: Workload, runs: &[(String, Vec<Line>)]) -> Vec<Bar<'_>> {
    let of = |line: &&Line| line.workload == workload.name();
    let mut forms: Vec<_> = runs.iter().flat_map(|(_, lines)| lines.iter().filter(of).map(form)).collect();
    forms.sort_by_key(|(variant, _)| variant.as_str() != "seed");
    let mut seen = Vec::new();
    forms.retain(|form| {
        !seen.contains(form) && {
            seen.push(*form);
            true
        }
    });
    let mut bars = Vec::new();
    for wanted in forms {
        if !bars.is_empty() {
            bars.push(Bar { run: 0, name: "", line: None });
        }
        for (run, (name, lines)) in runs.iter().enumerate() {
            let found = lines.iter().filter(of).filter(|line| form(line) == wanted);
            bars.extend(found.map(|line| Bar { run, name, line: Some(line) }));
        }
    }
    bars
}

fn form(line: &Line) -> (&String, &Option<String>) {
    (&line.variant, &line.offsets)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(
    area: &Area<'_>,
    bars: &[Bar<'_>],
    title: &str,
    height: impl Fn(&Line) -> f64,
    mark: Option<fn(&Line) -> f64>,
) -> Result<(), Box<dyn std::error::Error>> {
    let lines = || bars.iter().enumerate().filter_map(|(at, bar)| Some((at, bar.run, bar.line?)));
    let highest = |line: &Line| height(line).max(mark.map_or(0.0, |mark| mark(line)));
    let top = lines().map(|(_, _, line)| highest(line)).fold(0.1, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(170)
        .y_label_area_size(70)
        .build_cartesian_2d((0..bars.len()).into_segmented(), 0.0..top)?;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(at) => bars.get(*at).map_or(String::new(), label),
        _ => String::new(),
    };
    let turned = ("sans-serif", 11).into_font().transform(FontTransform::Rotate90);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(bars.len() + 1)
        .x_label_formatter(&name)
        .x_label_style(turned)
        .draw()?;
    chart.draw_series(lines().map(|(at, run, line)| {
        let corners = [(SegmentValue::Exact(at), 0.0), (SegmentValue::Exact(at + 1), height(line))];
        let mut bar = Rectangle::new(corners, Palette99::pick(run).mix(0.6).filled());
        bar.set_margin(0, 0, 4, 4);
        bar
    }))?;
    if let Some(mark) = mark {
        chart.draw_series(lines().map(|(at, _, line)| {
            let ends = vec![(SegmentValue::Exact(at), mark(line)), (SegmentValue::Exact(at + 1), mark(line))];
            PathElement::new(ends, BLACK.stroke_width(2))
        }))?;
    }
    Ok(())
}

fn label(bar: &Bar<'_>) -> String {
    let Some(line) = bar.line else { return String::new() };
    // The end tells runs and directories apart.
    let cut = bar.name.chars().count().saturating_sub(NAME_CHARS);
    let name: String = bar.name.chars().skip(cut).collect();
    match &line.offsets {
        Some(offsets) if line.variant != "seed" => format!("{name} {} {offsets}", line.variant),
        _ => format!("{name} {}", line.variant),
    }
}
