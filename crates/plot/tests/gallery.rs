//! Every kind of chart, drawn with ordinary and with awkward data. The pictures stay in `gallery` of cargo's temporary
//! directory for whoever wants to look at them.

use memfold_plot::{
    ccdf, Axis, Bars, Block, Chart, Line, Lines, Point, Report, Scatter, Series, Table, Unit, Value,
};
use memfold_stats::Histogram;
use std::fs;
use std::path::PathBuf;

fn value(middle: f64, low: f64, high: f64) -> Option<Value> {
    Some(Value { middle, interval: Some((low, high)) })
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn ratios() -> Bars {
    Bars {
        title: "Throughput beside the baseline".into(),
        axis: Axis::ratio("units a second, over the baseline's"),
        groups: names(&[
            "interactive_burst",
            "anon_streamer",
            "random_touch_heap",
            "mmap_churn",
            "zipf_heap",
        ]),
        series: vec![
            Series {
                name: "pager".into(),
                values: vec![
                    value(0.999, 0.98, 1.01),
                    value(1.02, 1.0, 1.05),
                    value(0.97, 0.93, 0.99),
                    Some(1.0.into()),
                    None,
                ],
            },
            Series {
                name: "zram".into(),
                values: vec![
                    value(0.9, 0.85, 0.97),
                    Some(0.95.into()),
                    None,
                    value(0.8, 0.7, 0.9),
                    Some(1.1.into()),
                ],
            },
        ],
        stacked: false,
    }
}

fn latencies() -> Bars {
    let values = |factor: f64| [9e3, 12e3, 6.2e6, 0.0].map(|ns| Some((ns * factor).into())).to_vec();
    Bars {
        title: "Wait on a missing page".into(),
        axis: Axis::logarithmic("time of a wait").unit(Unit::Nanos),
        groups: names(&["burst", "streamer", "heap", "churn"]),
        series: vec![
            Series { name: "p95".into(), values: values(1.0) },
            Series { name: "p99".into(), values: values(2.7) },
        ],
        stacked: false,
    }
}

fn cpu() -> Bars {
    Bars {
        title: "CPU of the pager".into(),
        axis: Axis::linear("share of one CPU").unit(Unit::Percent).not_negative(),
        groups: names(&["burst", "streamer", "heap", "churn"]),
        series: vec![
            Series {
                name: "background thread".into(),
                values: [2.0, 3.3, 4.5, 0.1].map(|v| Some(v.into())).to_vec(),
            },
            Series {
                name: "fault thread".into(),
                values: [0.1, 0.2, 0.4, 11.3].map(|v| Some(v.into())).to_vec(),
            },
        ],
        stacked: true,
    }
}

fn improvement() -> Bars {
    Bars {
        title: "Losers beside winners".into(),
        axis: Axis::change("improvement"),
        groups: names(&["twenty-one times", "twice", "as much", "half", "a tenth"]),
        series: vec![Series {
            name: "improvement".into(),
            values: [2000.0, 100.0, 0.0, -50.0, -90.0].map(|v| Some(v.into())).to_vec(),
        }],
        stacked: false,
    }
}

fn uncertain() -> Bars {
    Bars {
        title: "An interval whose arithmetic goes below zero".into(),
        axis: Axis::linear("pages").not_negative(),
        groups: names(&["few", "many"]),
        series: vec![Series {
            name: "pages".into(),
            values: vec![value(3.0, -4.0, 10.0), value(20.0, 15.0, 25.0)],
        }],
        stacked: false,
    }
}

fn resident() -> Lines {
    let line = |name: &str, floor: f64| Line {
        name: name.into(),
        points: (0..200)
            .map(|i| f64::from(i) * 5e7)
            .map(|t| (t, 1048576.0 * (floor + (300.0 - floor) * (-t / 2e9).exp())))
            .collect(),
    };
    Lines {
        title: "Resident memory over time".into(),
        x: Axis::linear("time").unit(Unit::Nanos),
        y: Axis::linear("resident memory").unit(Unit::Bytes).range(0.0, 0.0),
        lines: vec![line("baseline", 300.0), line("pager", 120.0), line("zram", 160.0)],
    }
}

fn cost() -> Scatter {
    let point = |label: &str, series, x: f64, y: f64| Point {
        label: label.into(),
        series,
        x: x.into(),
        y: Value { middle: y, interval: Some((y - 0.01, y + 0.012)) },
    };
    Scatter {
        title: "What is saved, and what it costs".into(),
        x: Axis::linear("resident memory saved").unit(Unit::Percent),
        y: Axis::ratio("throughput, over the baseline's"),
        series: names(&["pager", "zram"]),
        points: vec![
            point("interactive_burst", 0, 40.0, 0.999),
            point("anon_streamer", 0, 41.0, 0.997),
            point("random_touch_heap", 0, 40.5, 0.995),
            point("mmap_churn", 0, 0.0, 1.0),
            point("interactive_burst", 1, 35.0, 0.93),
            point("mmap_churn", 1, 4.0, 0.9),
        ],
    }
}

fn distribution() -> Lines {
    let mut rng = memfold_stats::Rng::new(1);
    let mut draw = |scale: f64| {
        let mut histogram = Histogram::default();
        for _ in 0..20_000 {
            histogram
                .record((scale / (rng.below(1 << 20) as f64 / f64::from(1 << 20) + 1e-6).powf(0.7)) as u64);
        }
        histogram
    };
    let (ours, theirs) = (draw(4e3), draw(6e3));
    let axis = Axis::logarithmic("time of a unit").unit(Unit::Nanos);
    ccdf("How often a unit takes long", axis, &[("baseline".into(), &ours), ("pager".into(), &theirs)])
}

fn awkward() -> Vec<(&'static str, Box<dyn Chart>)> {
    let empty = Bars { groups: vec![], series: vec![], ..ratios() };
    let odd = Bars {
        title: "<b> & \"quotes\"".into(),
        groups: names(&["one"]),
        series: (0..8)
            .map(|i| Series { name: format!("arm {i}"), values: vec![Some((f64::from(i) - 3.0).into())] })
            .collect(),
        axis: Axis::linear("gain"),
        stacked: false,
    };
    let nothing = Lines { lines: vec![], ..resident() };
    let strange = vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (2.0, 2.0)];
    let nan = Lines { lines: vec![Line { name: "a".into(), points: strange }], ..resident() };
    let lonely = Scatter { points: vec![], ..cost() };
    vec![
        ("no_bars", Box::new(empty)),
        ("many_arms", Box::new(odd)),
        ("no_lines", Box::new(nothing)),
        ("not_numbers", Box::new(nan)),
        ("no_points", Box::new(lonely)),
    ]
}

fn ordinary() -> Vec<(&'static str, Box<dyn Chart>)> {
    vec![
        ("ratios", Box::new(ratios())),
        ("latencies", Box::new(latencies())),
        ("cpu", Box::new(cpu())),
        ("improvement", Box::new(improvement())),
        ("uncertain", Box::new(uncertain())),
        ("resident", Box::new(resident())),
        ("cost", Box::new(cost())),
        ("distribution", Box::new(distribution())),
    ]
}

fn directory() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("gallery");
    fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn every_chart_is_drawn_as_svg_and_as_png_whatever_its_data() {
    for (name, chart) in ordinary().into_iter().chain(awkward()) {
        memfold_plot::save(chart.as_ref(), &directory(), name)
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let svg = fs::read_to_string(directory().join(format!("{name}.svg"))).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name} has coordinates that are no numbers");
        let png = fs::read(directory().join(format!("{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG") && png.len() > 5_000, "{name}.png has {} bytes", png.len());
    }
}

#[test]
fn a_chart_names_its_title_axes_series_and_groups() {
    let svg = ratios().svg();
    for text in ["Throughput beside the baseline", "units a second, over", "pager", "zram", "mmap_churn"] {
        assert!(svg.contains(text), "{text:?} is missing");
    }
    assert_eq!(ratios().svg(), svg, "equal charts give equal bytes");
}

#[test]
fn a_page_of_all_charts_names_no_other_file() {
    let table = Table {
        caption: "Medians of five runs.".into(),
        head: names(&["workload", "ratio", "saved"]),
        rows: vec![names(&["interactive_burst", "0.999", "41 %"]), names(&["mmap_churn", "1.000", "0 %"])],
    };
    let mut blocks = vec![Block::Heading("Figures".into()), Block::Table(table)];
    blocks.extend(
        ordinary().into_iter().map(|(name, chart)| Block::chart(chart.as_ref(), format!("Chart {name}."))),
    );
    let html = Report { title: "Gallery".into(), summary: "Every kind of chart.".into(), blocks }.html();
    let elsewhere = html.replace("http://www.w3.org/2000/svg", "");
    for link in ["http:", "https:", "src=", "href=", "<script", "@import"] {
        assert!(!elsewhere.contains(link), "the page has {link}");
    }
    fs::write(directory().join("gallery.html"), html).unwrap();
}
