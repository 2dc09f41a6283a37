//! The lines as a picture.

use super::Line;
use anyhow::anyhow;
use plotters::prelude::*;
use std::path::Path;

/// Room for one bar and its name, in pixels.
const BAR: u32 = 46;
const HEIGHT: u32 = 480;

/// Draws rate and processor time of each line into an SVG file.
pub fn draw(lines: &[Line], file: &Path) -> anyhow::Result<()> {
    let width = 120 + BAR * lines.len().max(8) as u32;
    let root = SVGBackend::new(file, (width, 2 * HEIGHT)).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| anyhow!("drawing {}: {error}", file.display());
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let halves = root.split_evenly((2, 1));
    bars(
        &halves[0],
        lines,
        "GB/s (line: one TCP connection, sendfile to read)",
        |line| line.gbps,
        |line| line.raw_limit_gbps,
    )
    .map_err(|error| failed(&error))?;
    let cpu = |line: &Line| line.client_cpu_s_per_gib + line.node_cpu_s_per_gib;
    bars(&halves[1], lines, "CPU of client and node, s/GiB (line: node alone)", cpu, |line| line.node_cpu_s_per_gib)
        .map_err(|error| failed(&error))?;
    root.present().map_err(|error| failed(&error))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn bars(
    area: &Area<'_>,
    lines: &[Line],
    title: &str,
    height: impl Fn(&Line) -> f64,
    mark: impl Fn(&Line) -> f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let top = lines.iter().map(|line| height(line).max(mark(line))).fold(0.1, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(110)
        .y_label_area_size(50)
        .build_cartesian_2d(0..lines.len().max(1), 0.0..top)?;
    let name =
        |at: &usize| lines.get(*at).map_or(String::new(), |line| format!("{} {}K", line.case, line.block_bytes >> 10));
    let turned = ("sans-serif", 12).into_font().transform(FontTransform::Rotate90);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(lines.len())
        .x_label_formatter(&name)
        .x_label_style(turned)
        .draw()?;
    chart.draw_series(lines.iter().enumerate().map(|(at, line)| {
        let mut bar = Rectangle::new([(at, 0.0), (at + 1, height(line))], BLUE.mix(0.5).filled());
        bar.set_margin(0, 0, 8, 8);
        bar
    }))?;
    chart.draw_series(
        lines
            .iter()
            .enumerate()
            .map(|(at, line)| PathElement::new(vec![(at, mark(line)), (at + 1, mark(line))], RED.stroke_width(2))),
    )?;
    Ok(())
}
