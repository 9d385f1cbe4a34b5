use proptest::prelude::*;

use super::*;

const SIZE: u64 = 1 << 40;

fn limits(style: Style) -> Limits {
    Limits { style, size: SIZE, read_only: false, meta_context: true, max_request: 1 << 20 }
}

fn head(command: u16, flags: u16, offset: u64, length: u64) -> RequestHead {
    RequestHead { flags, command, cookie: 9, offset, length }
}

fn errno(plan: &Plan) -> Option<Errno> {
    match plan {
        Plan::Refuse { error, .. } => Some(error.errno),
        _ => None,
    }
}

#[test]
fn ranges_end_with_the_export() {
    let limits = limits(Style::Structured);
    for (command, beyond) in [
        (cmd::READ, Errno::Inval),
        (cmd::WRITE, Errno::NoSpc),
        (cmd::TRIM, Errno::Inval),
        (cmd::CACHE, Errno::Inval),
        (cmd::WRITE_ZEROES, Errno::NoSpc),
        (cmd::BLOCK_STATUS, Errno::Inval),
    ] {
        assert_eq!(errno(&limits.plan(&head(command, 0, SIZE - 10, 10))), None, "{command}");
        for (offset, length) in [(SIZE - 10, 11), (SIZE, 1), (SIZE + 1, 0), (u64::MAX, 1), (u64::MAX - 5, 6)]
        {
            assert_eq!(
                errno(&limits.plan(&head(command, 0, offset, length))),
                Some(beyond),
                "{command} {offset}"
            );
        }
    }
}

#[test]
fn flags_belong_to_commands() {
    let all = [
        cmd::FLAG_FUA,
        cmd::FLAG_NO_HOLE,
        cmd::FLAG_DF,
        cmd::FLAG_REQ_ONE,
        cmd::FLAG_FAST_ZERO,
        1 << 6,
        1 << 15,
    ];
    let allowed = |command, style| match command {
        cmd::READ if style != Style::Simple => vec![cmd::FLAG_FUA, cmd::FLAG_DF],
        cmd::WRITE_ZEROES => vec![cmd::FLAG_FUA, cmd::FLAG_NO_HOLE, cmd::FLAG_FAST_ZERO],
        cmd::BLOCK_STATUS => vec![cmd::FLAG_FUA, cmd::FLAG_REQ_ONE],
        _ => vec![cmd::FLAG_FUA],
    };
    for style in [Style::Simple, Style::Structured, Style::Extended] {
        for command in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
            let payload =
                if command == cmd::WRITE && style == Style::Extended { cmd::FLAG_PAYLOAD_LEN } else { 0 };
            for flag in all {
                let plan = limits(style).plan(&head(command, flag | payload, 0, 512));
                let expected =
                    if allowed(command, style).contains(&flag) { None } else { Some(Errno::Inval) };
                assert_eq!(errno(&plan), expected, "{style:?} {command} {flag:#x}");
            }
        }
    }
}

#[test]
fn a_refused_write_has_its_payload_skipped() {
    let read_only = Limits { read_only: true, ..limits(Style::Simple) };
    let plan = read_only.plan(&head(cmd::WRITE, 0, 0, 4096));
    assert!(matches!(&plan, Plan::Refuse { error, payload: 4096 } if error.errno == Errno::Perm), "{plan:?}");
    let plan = limits(Style::Simple).plan(&head(cmd::WRITE, 0, 0, (1 << 20) + 1));
    assert!(matches!(&plan, Plan::Refuse { payload, .. } if *payload == (1 << 20) + 1), "{plan:?}");
    let plan = limits(Style::Simple).plan(&head(cmd::WRITE, 0, 0, u64::from(MAX_PAYLOAD) + 1));
    assert!(matches!(plan, Plan::GiveUp(_)), "{plan:?}");
}

#[test]
fn extended_payloads_follow_their_flag() {
    let limits = limits(Style::Extended);
    let plan = limits.plan(&head(cmd::WRITE, cmd::FLAG_PAYLOAD_LEN, 0, 512));
    assert_eq!(plan, Plan::Run { operation: Operation::Write { offset: 0, fua: false }, payload: 512 });
    let plan = limits.plan(&head(cmd::WRITE, 0, 0, 512));
    assert!(matches!(&plan, Plan::Refuse { payload: 0, .. }), "{plan:?}");
    let plan = limits.plan(&head(cmd::TRIM, cmd::FLAG_PAYLOAD_LEN, 0, 512));
    assert!(matches!(&plan, Plan::Refuse { payload: 512, .. }), "{plan:?}");
    let plan = limits.plan(&head(cmd::TRIM, cmd::FLAG_PAYLOAD_LEN, 0, 1 << 40));
    assert!(matches!(plan, Plan::GiveUp(_)), "{plan:?}");
    let whole = Range { offset: 0, length: SIZE };
    let plan = limits.plan(&head(cmd::TRIM, cmd::FLAG_FUA, 0, SIZE));
    assert_eq!(plan, Plan::Run { operation: Operation::Trim { range: whole, fua: true }, payload: 0 });
}

#[test]
fn long_reads_are_refused_by_style() {
    let long = head(cmd::READ, 0, 0, (1 << 20) + 1);
    assert_eq!(errno(&limits(Style::Simple).plan(&long)), Some(Errno::Inval));
    assert_eq!(errno(&limits(Style::Structured).plan(&long)), Some(Errno::Overflow));
    let longest = head(cmd::READ, cmd::FLAG_DF, 0, 1 << 20);
    let operation = Operation::Read { offset: 0, length: 1 << 20, whole: true };
    assert_eq!(limits(Style::Structured).plan(&longest), Plan::Run { operation, payload: 0 });
}

#[test]
fn read_only_refuses_all_writing() {
    let limits = Limits { read_only: true, ..limits(Style::Structured) };
    for command in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
        assert_eq!(errno(&limits.plan(&head(command, 0, 0, 512))), Some(Errno::Perm));
    }
    for command in [cmd::READ, cmd::CACHE, cmd::BLOCK_STATUS] {
        assert_eq!(errno(&limits.plan(&head(command, 0, 0, 512))), None);
    }
    assert_eq!(errno(&limits.plan(&head(cmd::FLUSH, 0, 0, 0))), None);
}

#[test]
fn status_needs_a_context_and_a_length() {
    let without = Limits { meta_context: false, ..limits(Style::Structured) };
    assert_eq!(errno(&without.plan(&head(cmd::BLOCK_STATUS, 0, 0, 512))), Some(Errno::Inval));
    assert_eq!(errno(&limits(Style::Structured).plan(&head(cmd::BLOCK_STATUS, 0, 0, 0))), Some(Errno::Inval));
}

#[test]
fn filters_of_status_name_the_context_once() {
    let limits = limits(Style::Extended);
    let payload = |length: u64, ids: &[u32]| {
        let mut out = length.to_be_bytes().to_vec();
        out.extend(ids.iter().flat_map(|id| id.to_be_bytes()));
        out
    };
    let range = Range { offset: 512, length: 1 << 35 };
    let good = limits.filtered_status(512, true, &payload(1 << 35, &[BASE_ALLOCATION_ID]));
    assert_eq!(good, Ok(Operation::Status { range, one: true }));
    for ids in [&[][..], &[BASE_ALLOCATION_ID + 1], &[BASE_ALLOCATION_ID; 2]] {
        assert!(limits.filtered_status(512, false, &payload(1, ids)).is_err(), "{ids:?}");
    }
    assert!(limits.filtered_status(512, false, &payload(SIZE, &[BASE_ALLOCATION_ID])).is_err());
    assert!(limits.filtered_status(512, false, &[0; 7]).is_err());
    let long = head(cmd::BLOCK_STATUS, cmd::FLAG_PAYLOAD_LEN, 0, 4096);
    assert!(matches!(limits.plan(&long), Plan::Refuse { payload: 4096, .. }));
}

#[test]
fn unknown_commands_are_refused() {
    for command in [8, 9, 255, u16::MAX] {
        assert_eq!(errno(&limits(Style::Simple).plan(&head(command, 0, 0, 512))), Some(Errno::Inval));
    }
}

proptest! {
    /// For any request head, the operation is within the export and the largest request.
    #[test]
    fn what_runs_is_within_bounds(
        style in prop_oneof![Just(Style::Simple), Just(Style::Structured), Just(Style::Extended)],
        (read_only, meta_context) in any::<(bool, bool)>(),
        (flags, command) in (0u16..64, 0u16..10),
        offset in prop_oneof![0..2 * SIZE, any::<u64>()],
        length in prop_oneof![0..1u64 << 22, any::<u64>()],
    ) {
        let limits = Limits { read_only, meta_context, ..limits(style) };
        if let Plan::Run { operation, payload } = limits.plan(&head(command, flags, offset, length)) {
            prop_assert!(payload <= MAX_PAYLOAD);
            let (range, writes) = match operation {
                Operation::Read { offset, length, .. } => {
                    prop_assert!(length <= limits.max_request);
                    (Range { offset, length: u64::from(length) }, false)
                }
                Operation::Write { offset, .. } => {
                    prop_assert!(payload <= limits.max_request);
                    (Range { offset, length: u64::from(payload) }, true)
                }
                Operation::Trim { range, .. } | Operation::WriteZeroes { range, .. } => (range, true),
                Operation::Cache { range } | Operation::Status { range, .. } => (range, false),
                Operation::Flush | Operation::FilteredStatus { .. } => (Range { offset: 0, length: 0 }, false),
            };
            prop_assert!(u128::from(range.offset) + u128::from(range.length) <= u128::from(SIZE));
            prop_assert!(!(writes && read_only));
        }
    }
}
