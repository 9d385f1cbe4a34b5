//! The plan and the status: tables for users, JSON for programs.

use std::io::Write;

use jiff::Timestamp;
use serde_json::{Value, json};
use snowmelt_policy::config::{Period, Rules};
use snowmelt_policy::duration::short;
use snowmelt_policy::plan::{Action, NewSnapshot, Plan, Planner};
use snowmelt_policy::status::{JobStatus, PeriodStatus};

use crate::app::App;
use crate::error::Result;
use crate::output::table::{self, Column};

/// The planned actions: a table for each kind, in the order of execution.
pub(super) fn plan(app: &mut App<'_>, plan: &Plan, complaints: &[String], as_json: bool) -> Result<()> {
    if as_json {
        let actions: Vec<Value> = plan.actions.iter().flat_map(action_json).collect();
        return document(app, json!({ "actions": actions, "notes": plan.notes, "errors": complaints }));
    }
    let (mut taken, mut run, mut destroyed) = (Vec::new(), Vec::new(), Vec::new());
    for action in &plan.actions {
        match action {
            Action::Take(taking) => taken.extend(taking.datasets.iter().flat_map(|of| {
                let row =
                    |new: &NewSnapshot| vec![of.dataset.clone(), new.period.clone(), new.reason.clone()];
                of.snapshots.iter().map(row)
            })),
            Action::Replicate { job, reason } => run.push(vec![job.clone(), reason.clone()]),
            Action::Destroy(of) => destroyed.push(vec![
                format!("{}{}", of.place, of.dataset),
                of.snapshot.clone(),
                of.reason.clone(),
            ]),
        }
    }
    if plan.actions.is_empty() {
        writeln!(app.context.out, "nothing is due")?;
    }
    let mut is_first = true;
    for (columns, rows) in [
        (&["SNAPSHOT OF", "PERIOD", "WHY"][..], taken),
        (&["RUN JOB", "WHY"], run),
        (&["DESTROY OF", "SNAPSHOT", "WHY"], destroyed),
    ] {
        if rows.is_empty() {
            continue;
        }
        if !std::mem::take(&mut is_first) {
            writeln!(app.context.out)?;
        }
        let columns: Vec<Column> = columns.iter().copied().map(Column::left).collect();
        table::print(&mut app.context.out, &columns, &rows, false)?;
    }
    if !plan.notes.is_empty() {
        writeln!(app.context.out)?;
    }
    for note in &plan.notes {
        writeln!(app.context.out, "note: {note}")?;
    }
    Ok(())
}

fn action_json(action: &Action) -> Vec<Value> {
    let row =
        |action: &str, what: &str, reason: &str| json!({ "action": action, "what": what, "reason": reason });
    match action {
        Action::Take(taking) => {
            let all = taking.datasets.iter().flat_map(|of| of.snapshots.iter().map(move |new| (of, new)));
            all.map(|(of, new)| row("snapshot", &format!("{}@{}", of.dataset, new.name), &new.reason))
                .collect()
        }
        Action::Replicate { job, reason } => vec![row("replicate", job, reason)],
        Action::Destroy(of) => {
            vec![row("destroy", &format!("{}{}@{}", of.place, of.dataset, of.snapshot), &of.reason)]
        }
    }
}

/// How things stand.
pub(super) fn status(
    app: &mut App<'_>,
    planner: &Planner<'_>,
    complaints: &[String],
    as_json: bool,
) -> Result<()> {
    let now = Timestamp::now().as_second();
    let (periods, jobs) = (planner.periods(), planner.jobs(now));
    if as_json {
        let periods: Vec<Value> = periods.iter().map(period_json).collect();
        let jobs: Vec<Value> = jobs.iter().map(job_json).collect();
        return document(app, json!({ "datasets": periods, "jobs": jobs, "errors": complaints }));
    }
    let ago = |moment: Option<i64>| {
        moment.map_or_else(|| "-".to_owned(), |moment| format!("{} ago", short((now - moment).max(0))))
    };
    let until = |moment: Option<i64>| {
        moment.map_or_else(|| "-".to_owned(), |moment| format!("in {}", short((moment - now).max(0))))
    };
    if periods.is_empty() && jobs.is_empty() {
        writeln!(app.context.out, "no dataset of the policy exists")?;
    }
    if !periods.is_empty() {
        let columns = [
            Column::left("DATASET"),
            Column::left("PERIOD"),
            Column::right("THERE"),
            Column::right("WANTED"),
            Column::left("NEWEST"),
            Column::left("NEXT"),
        ];
        let rows: Vec<Vec<String>> = periods
            .into_iter()
            .map(|PeriodStatus { dataset, period, present, wanted, newest, next }| {
                vec![dataset, period, present.to_string(), wanted.to_string(), ago(newest), until(next)]
            })
            .collect();
        table::print(&mut app.context.out, &columns, &rows, false)?;
    }
    if !jobs.is_empty() {
        let columns = ["JOB", "STATE", "BEHIND", "LAST RUN", "SUCCEEDED", "NEXT", "WHAT"].map(Column::left);
        let rows: Vec<Vec<String>> = jobs.iter().map(|job| job_row(job, &ago, &until)).collect();
        writeln!(app.context.out)?;
        table::print(&mut app.context.out, &columns, &rows, false)?;
    }
    for job in &jobs {
        if let Some(failure) = job.failure.as_ref().filter(|_| !job.running) {
            writeln!(app.context.out, "job {}: {failure}", job.job)?;
        }
    }
    Ok(())
}

fn job_row(
    job: &JobStatus,
    ago: &dyn Fn(Option<i64>) -> String,
    until: &dyn Fn(Option<i64>) -> String,
) -> Vec<String> {
    let state = match (job.running, &job.failure, job.began) {
        (true, ..) => "running",
        (_, Some(_), _) => "failed",
        (_, None, None) => "new",
        (_, None, Some(_)) => "ok",
    };
    vec![
        job.job.clone(),
        state.to_owned(),
        job.lag.map_or_else(|| "-".to_owned(), short),
        ago(job.began),
        ago(job.succeeded),
        until(job.next),
        format!("{} to {}", job.source, job.target),
    ]
}

fn period_json(period: &PeriodStatus) -> Value {
    json!({
        "dataset": period.dataset, "period": period.period, "there": period.present, "wanted": period.wanted,
        "newest": period.newest, "next": period.next,
    })
}

fn job_json(job: &JobStatus) -> Value {
    json!({
        "job": job.job, "source": job.source, "target": job.target, "behind_seconds": job.lag, "began": job.began,
        "succeeded": job.succeeded, "failure": job.failure, "running": job.running, "next": job.next,
    })
}

/// What holds for each dataset.
pub(super) fn rules(app: &mut App<'_>, planner: &Planner<'_>, absent: &[&str], as_json: bool) -> Result<()> {
    if as_json {
        let datasets: Vec<Value> =
            planner.rules.iter().map(|(name, rules)| rules_json(name, rules)).collect();
        let jobs: Vec<&String> = planner.config.jobs.keys().collect();
        return document(
            app,
            json!({ "datasets": datasets, "jobs": jobs, "absent": absent, "warnings": planner.config.warnings }),
        );
    }
    let columns = ["DATASET", "TAKEN", "PRUNED", "KEPT"].map(Column::left);
    let yes = |is_so: bool| if is_so { "yes" } else { "no" }.to_owned();
    let rows: Vec<Vec<String>> = planner
        .rules
        .iter()
        .map(|(name, rules)| {
            let taken = match &rules.follows {
                Some(leader) => format!("with {leader}"),
                None => yes(rules.autosnap),
            };
            vec![name.clone(), taken, yes(rules.autoprune), kept(rules)]
        })
        .collect();
    if !rows.is_empty() {
        table::print(&mut app.context.out, &columns, &rows, false)?;
    }
    for (name, job) in &planner.config.jobs {
        writeln!(app.context.out, "job {name}: {} to {}", job.source, job.target)?;
    }
    Ok(())
}

fn kept(rules: &Rules) -> String {
    let count = |period: &Period| format!("{} {}", period.count, period.name);
    let mut parts: Vec<String> = rules.periods.iter().filter(|period| period.count > 0).map(count).collect();
    if rules.retention.grid.is_some() {
        parts.push("grid".to_owned());
    }
    parts.extend(rules.retention.last.map(|last| format!("last {last}")));
    if rules.retention.keep_not_replicated {
        parts.push("not replicated".to_owned());
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

fn rules_json(name: &str, rules: &Rules) -> Value {
    let periods: Vec<Value> =
        rules.periods.iter().map(|period| json!({ "period": period.name, "count": period.count })).collect();
    json!({
        "dataset": name, "autosnap": rules.autosnap, "autoprune": rules.autoprune, "follows": rules.follows,
        "periods": periods, "prune_defer": rules.prune_defer,
    })
}

/// Prints one JSON object.
pub(super) fn document(app: &mut App<'_>, document: Value) -> Result<()> {
    writeln!(app.context.out, "{document}")?;
    Ok(())
}
