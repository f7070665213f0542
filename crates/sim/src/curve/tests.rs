use super::*;
use crate::generate::{Generator, Shape};
use memfold_policy::spec::{names, Spec};
use proptest::prelude::*;

fn requests(objects: &[u64]) -> impl Iterator<Item = Result<Request, TraceError>> + '_ {
    objects.iter().map(|&object| Ok(Request { time: 0, object }))
}

fn zipf(pages: u64, count: u64) -> Vec<u64> {
    Generator::new(Shape::Zipf { skew: 0.9 }, pages, count, 3).collect()
}

#[test]
fn sizes_ascend_from_a_thousandth_to_all() {
    let many = sizes(100_000, 30);
    assert_eq!((many[0], many[29], many.len()), (100, 100_000, 30));
    assert!(many.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(sizes(3, 10), [1, 2, 3]);
    assert_eq!(sizes(1, 5), [1]);
}

#[test]
fn a_sample_comes_near_the_exact_curve_with_a_tenth_of_the_pages() {
    let objects = zipf(20_000, 300_000);
    let names = ["lru", "arc", "fifo"];
    let policies: Vec<Spec> = names.iter().map(|name| Spec::parse(name).unwrap()).collect();
    let plan = Plan { policies, sizes: vec![500, 2000, 8000] };
    let exact = Sample::whole(Trace::of(objects.iter().copied()).unwrap()).curves(&plan, || ()).unwrap();
    for sampling in [Sampling::Rate(0.1), Sampling::Pages(2000)] {
        let sample = sample(requests(&objects), sampling).unwrap();
        assert!((1500..2600).contains(&sample.trace.universe()), "{}", sample.trace.universe());
        let curves = sample.curves(&plan, || ()).unwrap();
        for (curve, exact) in curves.iter().zip(&exact) {
            for (point, truth) in curve.points.iter().zip(&exact.points) {
                let off = (point.miss_ratio - truth.miss_ratio).abs();
                assert!(
                    off < 0.05,
                    "{} at {}: {} and {}",
                    curve.policy,
                    point.size,
                    point.miss_ratio,
                    truth.miss_ratio
                );
            }
            assert!(exact.exact && !curve.exact);
        }
    }
}

#[test]
fn a_sample_of_so_many_pages_never_keeps_more() {
    let objects: Vec<u64> = (0..50_000).collect();
    let kept = sample(requests(&objects), Sampling::Pages(100)).unwrap();
    assert!((90..=100).contains(&kept.trace.universe()), "{}", kept.trace.universe());
    assert!((kept.universe() as f64 / 50_000.0 - 1.0).abs() < 0.5, "{}", kept.universe());
}

proptest! {
    #[test]
    fn lrus_curve_by_distances_is_that_of_its_runs(
        objects in prop::collection::vec(0u64..40, 1..400)
    ) {
        let whole = Sample::whole(Trace::of(objects).unwrap());
        // In whatever order they are asked for.
        let sizes: Vec<usize> = (1..=whole.universe()).rev().collect();
        let lru = Spec::parse("lru").unwrap();
        for point in whole.lru(&sizes).unwrap() {
            prop_assert_eq!(point.miss_ratio, one(&whole.trace, &lru, point.size).unwrap().miss_ratio);
        }
    }

    #[test]
    fn no_policy_goes_below_belady_and_lrus_curve_never_rises(seed in 0u64..1000) {
        let objects = Generator::new(Shape::Zipf { skew: 0.7 }, 60, 2000, seed);
        let whole = Sample::whole(Trace::of(objects).unwrap());
        let policies = names().map(|name| Spec::parse(name).unwrap()).collect();
        let curves = whole.curves(&Plan { policies, sizes: vec![3, 10, 30] }, || ()).unwrap();
        let best = curves.iter().find(|curve| curve.policy == "belady").unwrap();
        for curve in &curves {
            let above = curve.points.iter().zip(&best.points).all(|(a, b)| a.miss_ratio >= b.miss_ratio);
            prop_assert!(above, "{curve:?}");
            let falls = curve.points.windows(2).all(|pair| pair[0].miss_ratio >= pair[1].miss_ratio);
            prop_assert!(falls || !["lru", "belady"].contains(&curve.policy.as_str()), "{curve:?}");
        }
    }
}
