//! Runs beside each other as a picture.

use super::{Line, Variant, Workload};
use anyhow::anyhow;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::path::Path;

/// In pixels.
const WIDTH: u32 = 1100;
/// Of a bar.
const BAR: u32 = 24;
/// Of title, axis and margins.
const FRAME: u32 = 80;
/// Names of runs are cut.
const NAME_CHARS: usize = 50;

/// A workload in one variant, measured by some runs.
struct Panel<'a> {
    workload: Workload,
    title: String,
    /// Number and name of each run, and what it measured.
    bars: Vec<(usize, &'a str, &'a Line)>,
}

/// Draws runs, which are named, into an SVG file: a row for each workload in each variant with a scale of its own, on the left the rate, on
/// the right the times of operations.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(runs: &[(String, Vec<Line>)], file: &Path) -> anyhow::Result<()> {
    let panels = panels(runs);
    let heights: Vec<u32> = panels.iter().map(|panel| FRAME + BAR * panel.bars.len() as u32).collect();
    let root = SVGBackend::new(file, (WIDTH, heights.iter().sum::<u32>().max(FRAME))).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| anyhow!("drawing {}: {error}", file.display());
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let mut rest = root.clone();
    for (panel, height) in panels.iter().zip(heights) {
        let (row, below) = rest.split_vertically(height);
        rest = below;
        let (left, right) = row.split_horizontally(WIDTH / 2);
        let (unit, rate): (_, fn(&Line) -> f64) = match panel.workload {
            Workload::SeqWrite | Workload::SeqRead => ("MB/s", |line| line.mb_per_s),
            _ => ("operations/s", |line| line.ops_per_s),
        };
        let title = format!("{}, {unit}", panel.title);
        let words = |name: &str, line: &Line| format!("{}: {}", cut(name), shown(rate(line)));
        bars(&left, panel, &title, rate, None, words).map_err(|error| failed(&error))?;
        let title = "us of an operation: p50 (line: p99)";
        let words = |_: &str, line: &Line| format!("{} ({})", shown(line.p50_us), shown(line.p99_us));
        bars(&right, panel, title, |line| line.p50_us, Some(|line| line.p99_us), words)
            .map_err(|error| failed(&error))?;
    }
    root.present().map_err(|error| failed(&error))
}

/// In the order of the published table, seeds first.
fn panels(runs: &[(String, Vec<Line>)]) -> Vec<Panel<'_>> {
    let mut panels = Vec::new();
    for workload in Workload::EVERY {
        for variant in Variant::EVERY {
            for offsets in [None, Some("aligned"), Some("unaligned")] {
                let is_it = |line: &&Line| {
                    line.workload == workload.name()
                        && line.variant == variant.name()
                        && line.offsets.as_deref() == offsets
                };
                let found = runs.iter().enumerate().flat_map(|(at, (name, lines))| {
                    lines.iter().filter(is_it).map(move |line| (at, name.as_str(), line))
                });
                let bars: Vec<_> = found.collect();
                if !bars.is_empty() {
                    let title = [workload.name(), variant.name(), offsets.unwrap_or("")].join(" ");
                    panels.push(Panel { workload, title: title.trim_end().to_owned(), bars });
                }
            }
        }
    }
    panels
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn bars(
    area: &Area<'_>,
    panel: &Panel<'_>,
    title: &str,
    length: impl Fn(&Line) -> f64,
    mark: Option<fn(&Line) -> f64>,
    words: impl Fn(&str, &Line) -> String,
) -> Result<(), Box<dyn std::error::Error>> {
    let longest = |line: &Line| length(line).max(mark.map_or(0.0, |mark| mark(line)));
    let most = panel.bars.iter().map(|(_, _, line)| longest(line)).fold(0.1, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(10)
        .build_cartesian_2d(0.0..most, 0.0..panel.bars.len() as f64)?;
    let number = |number: &f64| format!("{number:.0}");
    chart.configure_mesh().disable_y_mesh().x_labels(6).x_label_formatter(&number).y_labels(0).draw()?;
    for (at, (run, name, line)) in panel.bars.iter().enumerate() {
        // The first run is the topmost.
        let high = (panel.bars.len() - at) as f64;
        let low = high - 1.0;
        let mut bar = Rectangle::new([(0.0, low), (length(line), high)], colour(*run).filled());
        bar.set_margin(2, 2, 0, 0);
        chart.draw_series([bar])?;
        if let Some(mark) = mark {
            chart.draw_series([PathElement::new([(mark(line), low), (mark(line), high)], BLACK.stroke_width(2))])?;
        }
        let style = ("sans-serif", 12).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
        chart.draw_series([Text::new(format!(" {}", words(name, line)), (0.0, low + 0.5), style)])?;
    }
    Ok(())
}

fn colour(run: usize) -> RGBAColor {
    [BLUE, RED, GREEN, MAGENTA, CYAN, BLACK][run % 6].mix(0.5)
}

fn shown(number: f64) -> String {
    let digits = if number < 100.0 { 1 } else { 0 };
    format!("{number:.digits$}")
}

/// The end tells runs and directories apart.
fn cut(name: &str) -> String {
    let count = name.chars().count();
    name.chars().skip(count.saturating_sub(NAME_CHARS)).collect()
}
