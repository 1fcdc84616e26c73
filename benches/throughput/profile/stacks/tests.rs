use super::*;

const SCRIPT: &str = "\
worker 0 
\tffffffff8a1b2c3d tun_do_read ([tun])
\t          55d0c0 _ZN6strait6worker3run17h0123456789abcdefE (/usr/bin/strait)
\t          55d000 std::thread::spawn<F, (A, B)> (/tmp/a b (deleted))

worker 0 
\t          55d0c0 _ZN6strait6worker3run17h0123456789abcdefE (/usr/bin/strait)
\t          55d000 std::thread::spawn<F, (A, B)> (/tmp/a b (deleted))

main 
\t    7f0000001234 [unknown] (/usr/lib/libc.so.6)
\t               0 [unknown] ([unknown])
";

#[test]
fn shared_callers_are_one_frame() {
    let all = Frame::from_script(SCRIPT);

    assert_eq!((all.samples, all.own, all.height()), (3, 0, 5));
    let spawn = callee(callee(&all, "worker 0"), "std::thread::spawn<F, (A, B)>");
    let run = callee(spawn, "strait::worker::run");
    assert_eq!((spawn.samples, spawn.own), (2, 0));
    assert_eq!((run.samples, run.own), (2, 1));
    assert_eq!(callee(run, "tun_do_read").own, 1);
}

#[test]
fn a_kernel_is_told_by_its_addresses() {
    let all = Frame::from_script(SCRIPT);

    let origin = |name| all.busiest().iter().find(|((f, _), _)| f.name == name).unwrap().0.0.origin;
    assert_eq!(origin("tun_do_read"), Origin::Kernel);
    assert_eq!(origin("strait::worker::run"), Origin::Program);
}

#[test]
fn a_missing_name_becomes_that_of_the_file() {
    let all = Frame::from_script(SCRIPT);

    let unknown = callee(callee(&all, "main"), "[unknown]");
    assert_eq!(callee(unknown, "[libc.so.6]").own, 1);
}

#[test]
fn own_time_is_added_up_over_all_callers() {
    let script = "a\n 10 leaf (x)\n 20 first (x)\n\na\n 10 leaf (x)\n 30 second (x)\n\n\
                  b\n 30 second (x)\n";

    assert_eq!(busiest(&Frame::from_script(script)), [("leaf", None, 2), ("second", None, 1)]);
}

#[test]
fn inlined_functions_are_told_from_the_one_they_are_in() {
    let script = "a\n 10 sum::add (inlined)\n 10 sum::fold (inlined)\n 10 sum::all (x)\n \
                  20 memcpy (inlined)\n 30 main (x)\n";

    let all = Frame::from_script(script);

    let main = callee(callee(&all, "a"), "main");
    let fold = callee(callee(callee(main, "memcpy"), "sum::all"), "sum::fold");
    assert_eq!(callee(fold, "sum::add").own, 1);
    assert_eq!(busiest(&all), [("sum::add", Some("sum::all"), 1)]);
}

#[test]
fn a_function_in_place_of_what_was_inlined_moves_behind_it() {
    let script = "a\n 10 sum::all (x)\n 10 fold (inlined)\n 10 all (inlined)\n 30 main (x)\n";

    let all = Frame::from_script(script);

    let main = callee(callee(&all, "a"), "main");
    assert_eq!(callee(callee(main, "sum::all"), "fold").own, 1);
    assert_eq!(busiest(&all), [("fold", Some("sum::all"), 1)]);
}

#[test]
fn what_starts_a_thread_is_left_out() {
    let script = format!("a\n 10 run (x)\n 20 {OUTERMOST} (x)\n 30 start_thread (x)\n");

    assert_eq!(callee(callee(&Frame::from_script(&script), "a"), "run").own, 1);
}

#[test]
fn a_sample_without_frames_counts_for_its_thread() {
    let all = Frame::from_script("idle\n\nnonsense\n no frame\n");

    assert_eq!(callee(&all, "idle").own, 1);
    assert_eq!(callee(&all, "nonsense").own, 1);
}

fn callee<'a>(frame: &'a Frame, name: &str) -> &'a Frame {
    let found = frame.callees.iter().find(|(function, _)| function.name == name);

    found.unwrap_or_else(|| panic!("{name} in {frame:#?}")).1
}

fn busiest(all: &Frame) -> Vec<(&str, Option<&str>, u32)> {
    let busiest = all.busiest().into_iter();

    busiest.map(|((function, host), own)| (function.name.as_str(), host, own)).collect()
}
