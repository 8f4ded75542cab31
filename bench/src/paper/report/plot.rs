//! Plots as SVG whose colours are CSS variables of the page that contains them.

use super::super::figure::{Axis, Origin, Plot, Series};
use super::axis::Scale;
use miette::{Report, miette};
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
    let of = |coordinate: fn(&(f64, f64)) -> f64| -> Vec<f64> {
        plot.series.iter().flat_map(|series| series.points.iter().map(coordinate)).collect()
    };
    let (x, y) = (Scale::new(&plot.x, &of(|point| point.0)), Scale::new(&plot.y, &of(|point| point.1)));
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area, plot, x, y).map_err(failed)?;
        area.present().map_err(|error| failed(error.to_string()))?;
    }
    Ok(themed(&text))
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    plot: &Plot,
    x: Scale,
    y: Scale,
) -> Result<(), String> {
    let titles = (x.title().to_owned(), y.title().to_owned());
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
        .bold_line_style(GRID)
        .light_line_style(GRID.mix(0.4))
        .axis_style(GRID)
        .label_style(font.clone())
        .axis_desc_style(font)
        .x_desc(titles.0)
        .y_desc(titles.1)
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
    use super::super::super::figure::Unit;
    use super::*;

    fn plot(log: bool) -> Plot {
        let axis = |label: &str| Axis { label: label.into(), unit: Unit::Number, log, zero: None };
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
}
