//! Plots as SVG whose colours are CSS variables of the page that contains them.

use super::super::figure::{Axis, Origin, Plot, Series};
use miette::{Report, miette};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::ShapeStyle;

/// The page shows plots at about this size in pixels, so that text stays readable on a phone.
const SIZE: (u32, u32) = (480, 300);
/// Number of curve colours in the page's style
pub(super) const COLOURS: usize = 6;

/// Returns a placeholder colour that [`themed`] replaces by a variable of the page.
const fn placeholder(n: u8) -> RGBColor {
    RGBColor(1, 2, n)
}

const TEXT: RGBColor = placeholder(200);
const GRID: RGBColor = placeholder(201);
const BACK: RGBColor = placeholder(202);

/// Returns the number of the colour variable of a curve. The paper's curve `paper, NAME` has the colour of
/// the measured curve `NAME`, so that curves to be compared look alike.
pub(super) fn colour(plot: &Plot, series: usize) -> usize {
    let one = &plot.series[series];
    let index_among =
        |end: usize, origin| plot.series[..end].iter().filter(|other| other.origin == origin).count();
    let name = one.name.strip_prefix("paper, ").filter(|_| one.origin == Origin::Paper);
    let same = name.and_then(|name| plot.series.iter().position(|other| other.name == name));
    same.map_or_else(|| index_among(series, one.origin), |same| index_among(same, Origin::Ours)) % COLOURS
}

/// Draws a plot as SVG.
pub(super) fn svg(plot: &Plot) -> Result<String, Report> {
    let failed = |error: String| miette!("\"{}\" cannot be drawn: {error}", plot.title);
    let (x, y) = (range(plot, |point| point.0, &plot.x), range(plot, |point| point.1, &plot.y));
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        let drawn = match (plot.x.log, plot.y.log) {
            (false, false) => draw(&area, plot, x.0..x.1, y.0..y.1),
            (true, false) => draw(&area, plot, (x.0..x.1).log_scale(), y.0..y.1),
            (false, true) => draw(&area, plot, x.0..x.1, (y.0..y.1).log_scale()),
            (true, true) => draw(&area, plot, (x.0..x.1).log_scale(), (y.0..y.1).log_scale()),
        };
        drawn.map_err(failed)?;
        area.present().map_err(|error| failed(error.to_string()))?;
    }
    Ok(themed(&text))
}

/// Returns the range of an axis: the least to the greatest value, with a margin.
fn range(plot: &Plot, of: fn(&(f64, f64)) -> f64, axis: &Axis) -> (f64, f64) {
    let values = plot.series.iter().flat_map(|series| series.points.iter().map(of));
    let values = values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0));
    let (least, most) = values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
    if least > most {
        return if axis.log { (0.1, 10.0) } else { (0.0, 1.0) };
    }
    if axis.log {
        let around = (most / least).powf(0.05).max(1.1);
        (least / around, most * around)
    } else {
        // Ranges that are not narrow begin at 0, so that lengths can be compared.
        let low = if least >= 0.0 && least < 0.6 * most { 0.0 } else { least - 0.1 * least.abs() };
        (low, if most > low { most + 0.06 * (most - low) } else { low + 1.0 })
    }
}

fn draw<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    plot: &Plot,
    x: X,
    y: Y,
) -> Result<(), String>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let to_text = |error: DrawingAreaErrorKind<_>| format!("{error}");
    let mut chart = ChartBuilder::on(area)
        .margin(6)
        .margin_right(16)
        .x_label_area_size(50)
        .y_label_area_size(66)
        .build_cartesian_2d(x, y)
        .map_err(to_text)?;
    let font = ("sans-serif", 16).into_font().color(&TEXT);
    chart
        .configure_mesh()
        .x_labels(6)
        .y_labels(6)
        .max_light_lines(0)
        .bold_line_style(GRID)
        .light_line_style(GRID)
        .axis_style(GRID)
        .label_style(font.clone())
        .axis_desc_style(font)
        .x_label_formatter(&|value| tick(*value))
        .y_label_formatter(&|value| tick(*value))
        .x_desc(&plot.x.label)
        .y_desc(&plot.y.label)
        .draw()
        .map_err(to_text)?;
    for (n, series) in plot.series.iter().enumerate() {
        let colour = placeholder(colour(plot, n) as u8);
        let points = points(series, plot);
        if series.origin == Origin::Ours {
            chart
                .draw_series(LineSeries::new(points.clone(), ShapeStyle::from(colour).stroke_width(2)))
                .map_err(to_text)?;
            chart
                .draw_series(points.into_iter().map(|at| Circle::new(at, 3, colour.filled())))
                .map_err(to_text)?;
        } else {
            chart
                .draw_series(DashedLineSeries::new(
                    points.clone(),
                    5,
                    4,
                    ShapeStyle::from(colour).stroke_width(1),
                ))
                .map_err(to_text)?;
            let hollow = |at| {
                EmptyElement::at(at)
                    + Circle::new((0, 0), 4, BACK.filled())
                    + Circle::new((0, 0), 4, colour.stroke_width(2))
            };
            chart.draw_series(points.into_iter().map(hollow)).map_err(to_text)?;
        }
    }
    Ok(())
}

/// Returns the points that can be shown on the plot's axes.
fn points(series: &Series, plot: &Plot) -> Vec<(f64, f64)> {
    let shown = |value: f64, axis: &Axis| value.is_finite() && (!axis.log || value > 0.0);
    series.points.iter().copied().filter(|point| shown(point.0, &plot.x) && shown(point.1, &plot.y)).collect()
}

fn tick(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(1e-3..1e6).contains(&size) => format!("{value:.0e}"),
        _ => super::number(value),
    }
}

/// Replaces the placeholder colours by the page's variables, and the fixed size by the page's width.
fn themed(svg: &str) -> String {
    let mut text = svg.to_owned();
    for n in 0..COLOURS {
        text = text.replace(&format!("\"#0102{n:02X}\""), &format!("\"var(--c{n})\""));
    }
    for (colour, variable) in [(TEXT, "text"), (GRID, "grid"), (BACK, "back")] {
        text = text.replace(&format!("\"#0102{:02X}\"", colour.2), &format!("\"var(--{variable})\""));
    }
    let (width, height) = SIZE;
    // Inline SVG in HTML needs no name space, and takes the available width without a size of its own.
    text.replace(&format!("width=\"{width}\" height=\"{height}\" viewBox"), "viewBox")
        .replace(" xmlns=\"http://www.w3.org/2000/svg\"", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(log: bool) -> Plot {
        let axis = |label: &str| Axis { label: label.into(), log };
        let points = [(1.0, 2.0), (10.0, 20.0), (100.0, f64::NAN), (0.0, 5.0)];
        let series =
            vec![Series::ours("a", points), Series::paper("b", points), Series::ours("c", [(5.0, 7.0)])];
        Plot { title: "t".into(), x: axis("right"), y: axis("up"), series }
    }

    #[test]
    fn colours_are_variables_of_the_page() {
        for log in [false, true] {
            let svg = svg(&plot(log)).unwrap();
            assert!(svg.starts_with("<svg viewBox=\"0 0 480 300\""), "{}", &svg[..80]);
            assert!(!svg.contains("\"#"), "a fixed colour: {svg}");
            for variable in ["--c0", "--c1", "--text", "--grid", "--back"] {
                assert!(svg.contains(&format!("var({variable})")), "{variable}");
            }
            assert!(svg.contains("right") && svg.contains("up") && !svg.contains("NaN"));
        }
    }

    #[test]
    fn a_papers_curve_has_the_colour_of_the_measured_curve_of_the_same_name() {
        let mut plot = plot(false);
        assert_eq!([0, 1, 2].map(|n| colour(&plot, n)), [0, 0, 1]);
        plot.series[1].name = "paper, c".into();
        assert_eq!([0, 1, 2].map(|n| colour(&plot, n)), [0, 1, 1]);
    }

    #[test]
    fn an_empty_plot_can_be_drawn() {
        let mut empty = plot(true);
        empty.series.clear();
        assert!(svg(&empty).unwrap().contains("right"));
    }

    #[test]
    fn ranges_include_zero_unless_narrow_or_logarithmic() {
        let of = |values: &[f64], log| {
            let series = vec![Series::ours("", values.iter().map(|value| (1.0, *value)))];
            let axis = Axis { label: String::new(), log };
            range(
                &Plot { title: String::new(), x: axis.clone(), y: axis.clone(), series },
                |point| point.1,
                &axis,
            )
        };
        assert!(of(&[1.0, 10.0], false).0.abs() < 1e-9);
        assert!(of(&[95.0, 100.0], false).0 > 80.0);
        assert!(of(&[1.0, 100.0], true).0 > 0.5 && of(&[3.0, 3.0], true).1 > 3.0);
        assert!(of(&[0.0, 0.0], false).1 > 0.0);
    }
}
