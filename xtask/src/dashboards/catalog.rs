//! Contents of the dashboards, as data. `$namespace` is a variable of the dashboard,
//! `$__rate_interval` is set by Grafana.

/// One dashboard.
pub(super) struct Dashboard {
    /// Name of the file, without extension.
    pub(super) name: &'static str,
    /// Title.
    pub(super) title: &'static str,
    /// Purpose of the dashboard.
    pub(super) description: &'static str,
    /// Rows, from top to bottom.
    pub(super) rows: &'static [Row],
}

/// Panels under a common title.
pub(super) struct Row {
    /// Title.
    pub(super) title: &'static str,
    /// Panels, from left to right.
    pub(super) panels: &'static [Panel],
}

/// One panel.
pub(super) struct Panel {
    /// Title.
    pub(super) title: &'static str,
    /// Description of the data, in one or two sentences.
    pub(super) description: &'static str,
    /// Form in which the data is shown.
    pub(super) kind: PanelKind,
    /// Unit, as Grafana names it.
    pub(super) unit: &'static str,
    /// Queries.
    pub(super) queries: &'static [Query],
}

/// How a panel shows its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PanelKind {
    /// Values over time.
    Graph,
    /// The last value.
    Number,
}

/// Query of a panel.
pub(super) struct Query {
    /// PromQL expression.
    pub(super) expression: &'static str,
    /// Name of each series, in which `{{label}}` is replaced.
    pub(super) legend: &'static str,
}

const fn graph(
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    queries: &'static [Query],
) -> Panel {
    Panel { title, description, kind: PanelKind::Graph, unit, queries }
}

const fn number(
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    queries: &'static [Query],
) -> Panel {
    Panel { title, description, kind: PanelKind::Number, unit, queries }
}

const fn query(expression: &'static str, legend: &'static str) -> Query {
    Query { expression, legend }
}

/// All dashboards.
pub(super) const DASHBOARDS: &[Dashboard] =
    &[OVERVIEW, COLLASET, CONSIST, INSTANCE, LIFECYCLE, OPERATION_JOB, TRANSITION_RULE];

const OVERVIEW: Dashboard = Dashboard {
    name: "overview",
    title: "Podops / Overview",
    description: "Operations on Pods in the whole cluster, and whether the operators work.",
    rows: &[
        Row {
            title: "Operations",
            panels: &[
                number(
                    "Operations in progress",
                    "Operations that are requested and not complete.",
                    "short",
                    &[query("sum(podops_lifecycle_operations) or vector(0)", "operations")],
                ),
                number(
                    "Longest in its stage",
                    "Time since the operation that has been in its stage for the longest time entered it.",
                    "s",
                    &[query(
                        "max(time() - podops_lifecycle_oldest_operation_timestamp_seconds) or vector(0)",
                        "age",
                    )],
                ),
                graph(
                    "Operations by stage and party that must act next",
                    "What operations in progress wait for.",
                    "short",
                    &[query(
                        "sum by (stage, waiting_for) (podops_lifecycle_operations)",
                        "{{stage}}: {{waiting_for}}",
                    )],
                ),
                graph(
                    "Operations ended",
                    "Operations that ended each second, by result.",
                    "ops",
                    &[query(
                        "sum by (result) (rate(podops_lifecycle_operations_ended_total[$__rate_interval]))",
                        "{{result}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Workloads",
            panels: &[
                graph(
                    "Pods of CollaSets",
                    "Pods that are available and that are not.",
                    "short",
                    &[query(
                        "sum by (state) (podops_collaset_pods{namespace=~\"$namespace\"})",
                        "{{state}}",
                    )],
                ),
                graph(
                    "CollaSets by progress",
                    "CollaSets by the reason of their condition Progressing.",
                    "short",
                    &[query(
                        "sum by (reason) (podops_collaset_collasets{namespace=~\"$namespace\"})",
                        "{{reason}}",
                    )],
                ),
                graph(
                    "OperationJobs by progress",
                    "OperationJobs that exist.",
                    "short",
                    &[query(
                        "sum by (progress) (podops_operationjob_jobs{namespace=~\"$namespace\"})",
                        "{{progress}}",
                    )],
                ),
            ],
        },
        OPERATORS,
        REQUESTS,
    ],
};

const OPERATORS: Row = Row {
    title: "Operators",
    panels: &[
        graph(
            "Leaders",
            "Replicas that are the leader; one for each operator.",
            "short",
            &[query("sum by (operator) (podops_leader)", "{{operator}}")],
        ),
        graph(
            "Memory",
            "Resident memory of each replica.",
            "bytes",
            &[query("process_resident_memory_bytes{job=\"podops\"}", "{{operator}} {{instance}}")],
        ),
        graph(
            "CPU",
            "Cores that each replica uses.",
            "short",
            &[query(
                "rate(process_cpu_seconds_total{job=\"podops\"}[$__rate_interval])",
                "{{operator}} {{instance}}",
            )],
        ),
        graph(
            "Queue depth",
            "Objects that wait to be reconciled.",
            "short",
            &[query("sum by (operator) (podops_queue_depth)", "{{operator}}")],
        ),
    ],
};

const REQUESTS: Row = Row {
    title: "API server",
    panels: &[
        graph(
            "Requests",
            "Requests to the API server each second, by operator and verb.",
            "reqps",
            &[query(
                "sum by (operator, verb) (rate(podops_client_requests_total[$__rate_interval]))",
                "{{operator}} {{verb}}",
            )],
        ),
        graph(
            "Failed requests and conflicts",
            "Requests each second that were answered with an error, and writes that conflicted.",
            "reqps",
            &[
                query(
                    "sum by (operator, code) (rate(podops_client_requests_total{code!~\"2..\"}[$__rate_interval])) or vector(0)",
                    "{{operator}} {{code}}",
                ),
                query(
                    "sum by (operator) (rate(podops_conflicts_total[$__rate_interval]))",
                    "{{operator}} conflicts",
                ),
            ],
        ),
        graph(
            "Duration of requests",
            "Time within which 99 % of the requests were answered.",
            "s",
            &[query(
                "histogram_quantile(0.99, sum by (operator, le) (rate(podops_client_request_duration_seconds_bucket[$__rate_interval])))",
                "{{operator}}",
            )],
        ),
        graph(
            "Reconciles",
            "Reconciles each second, by operator and result.",
            "ops",
            &[query(
                "sum by (operator, result) (rate(podops_reconciles_total[$__rate_interval]))",
                "{{operator}} {{result}}",
            )],
        ),
    ],
};

const COLLASET: Dashboard = Dashboard {
    name: "collaset-operator",
    title: "Podops / CollaSets",
    description: "Rollouts of CollaSets, and what their Pods wait for.",
    rows: &[
        Row {
            title: "Pods",
            panels: &[
                graph(
                    "Pods by namespace",
                    "Pods of CollaSets, by namespace and state.",
                    "short",
                    &[query(
                        "podops_collaset_pods{namespace=~\"$namespace\"}",
                        "{{namespace}} {{state}}",
                    )],
                ),
                graph(
                    "Waiting Pods",
                    "Pods in status.waiting, by phase: for more than 5 seconds, or queued.",
                    "short",
                    &[query(
                        "sum by (phase) (podops_collaset_waiting_pods{namespace=~\"$namespace\"})",
                        "{{phase}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Rollouts",
            panels: &[
                graph(
                    "CollaSets by namespace and progress",
                    "The reason of the condition Progressing.",
                    "short",
                    &[query(
                        "podops_collaset_collasets{namespace=~\"$namespace\"}",
                        "{{namespace}} {{reason}}",
                    )],
                ),
                graph(
                    "Degraded CollaSets",
                    "CollaSets whose condition Degraded is True.",
                    "short",
                    &[query(
                        "sum by (namespace, reason) (podops_collaset_degraded_collasets{namespace=~\"$namespace\"}) or vector(0)",
                        "{{namespace}} {{reason}}",
                    )],
                ),
                graph(
                    "Duration of rollouts",
                    "Median and 95th percentile of the time from a new revision until all Pods were available at it.",
                    "s",
                    &[
                        query(
                            "histogram_quantile(0.5, sum by (le) (rate(podops_collaset_rollout_duration_seconds_bucket[$__range])))",
                            "median",
                        ),
                        query(
                            "histogram_quantile(0.95, sum by (le) (rate(podops_collaset_rollout_duration_seconds_bucket[$__range])))",
                            "95 %",
                        ),
                    ],
                ),
            ],
        },
        OPERATORS,
        REQUESTS,
    ],
};

const INSTANCE: Dashboard = Dashboard {
    name: "instance-operator",
    title: "Podops / Instances of packages",
    description: "Runs of the plans of Instances, and the objects that they write.",
    rows: &[
        Row {
            title: "Instances",
            panels: &[
                number(
                    "Failed",
                    "Instances whose last run failed.",
                    "short",
                    &[query(
                        "sum(podops_instance_instances{namespace=~\"$namespace\",state=\"Failed\"}) or vector(0)",
                        "Instances",
                    )],
                ),
                graph(
                    "Instances by namespace and state",
                    "Instances whose plan runs, whose last run failed, and all others.",
                    "short",
                    &[query(
                        "podops_instance_instances{namespace=~\"$namespace\"}",
                        "{{namespace}} {{state}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Runs",
            panels: &[
                graph(
                    "Ended",
                    "Runs of plans that ended each second, by result.",
                    "ops",
                    &[query(
                        "sum by (result) (rate(podops_instance_runs_total[$__rate_interval]))",
                        "{{result}}",
                    )],
                ),
                graph(
                    "Duration",
                    "Median and 95th percentile of the time from the start of a run until its end.",
                    "s",
                    &[
                        query(
                            "histogram_quantile(0.5, sum by (le) (podops_instance_run_duration_seconds_bucket))",
                            "median",
                        ),
                        query(
                            "histogram_quantile(0.95, sum by (le) (podops_instance_run_duration_seconds_bucket))",
                            "95 %",
                        ),
                    ],
                ),
                graph(
                    "Writes of objects",
                    "Writes of the objects of packages each second, by verb and result.",
                    "ops",
                    &[query(
                        "sum by (verb, result) (rate(podops_instance_object_writes_total[$__rate_interval]))",
                        "{{verb}} {{result}}",
                    )],
                ),
            ],
        },
    ],
};

const LIFECYCLE: Dashboard = Dashboard {
    name: "lifecycle-operator",
    title: "Podops / Pod lifecycle",
    description: "Operations on Pods: how many start and end, how long each stage takes, and what they wait for.",
    rows: &[
        Row {
            title: "Operations",
            panels: &[
                graph(
                    "Started",
                    "Operations that began to take their Pod out of service each second, by type.",
                    "ops",
                    &[query(
                        "sum by (operation_type) (rate(podops_lifecycle_operations_started_total[$__rate_interval]))",
                        "{{operation_type}}",
                    )],
                ),
                graph(
                    "Ended",
                    "Operations that ended each second, by type and result.",
                    "ops",
                    &[query(
                        "sum by (operation_type, result) (rate(podops_lifecycle_operations_ended_total[$__rate_interval]))",
                        "{{operation_type}} {{result}}",
                    )],
                ),
                graph(
                    "In progress",
                    "Operations by stage and by the party that must act next.",
                    "short",
                    &[query("podops_lifecycle_operations", "{{stage}}: {{waiting_for}}")],
                ),
            ],
        },
        Row {
            title: "Time",
            panels: &[
                graph(
                    "Time in each stage, 95th percentile",
                    "The stages whose end was observed.",
                    "s",
                    &[query(
                        "histogram_quantile(0.95, sum by (stage, le) (rate(podops_lifecycle_stage_duration_seconds_bucket[$__rate_interval])))",
                        "{{stage}}",
                    )],
                ),
                graph(
                    "Oldest operation in each stage",
                    "Time since it entered the stage.",
                    "s",
                    &[query(
                        "time() - podops_lifecycle_oldest_operation_timestamp_seconds",
                        "{{stage}}: {{waiting_for}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Pods that need attention",
            panels: &[
                number(
                    "Invalid lifecycle labels",
                    "Pods that are not reconciled because a lifecycle label is invalid.",
                    "short",
                    &[query("sum(podops_lifecycle_invalid_label_pods)", "Pods")],
                ),
                number(
                    "Without readiness gate",
                    "Pods to which Services send traffic during operations.",
                    "short",
                    &[query("sum(podops_lifecycle_pods_without_readiness_gate)", "Pods")],
                ),
                graph(
                    "Gracefully deleted Pods",
                    "Pods deleted each second at the end of a graceful deletion.",
                    "ops",
                    &[query(
                        "sum(rate(podops_lifecycle_pods_deleted_total[$__rate_interval]))",
                        "Pods",
                    )],
                ),
            ],
        },
    ],
};

const TRANSITION_RULE: Dashboard = Dashboard {
    name: "transition-rule-operator",
    title: "Podops / Transition rules",
    description: "Decisions of PodTransitionRules, and how long operations wait for them.",
    rows: &[
        Row {
            title: "Decisions",
            panels: &[
                graph(
                    "Decisions",
                    "Operations that rules passed or newly rejected each second.",
                    "ops",
                    &[query(
                        "sum by (namespace, rule, verdict) (rate(podops_rule_decisions_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                        "{{namespace}} {{rule}} {{verdict}}",
                    )],
                ),
                graph(
                    "Limits",
                    "Limits of availablePolicies in Pods.",
                    "short",
                    &[query(
                        "podops_rule_budget_pods{namespace=~\"$namespace\"}",
                        "{{namespace}} {{rule}} {{limit}}",
                    )],
                ),
                graph(
                    "Waiting time, 95th percentile",
                    "Time from the start of operations until they were granted.",
                    "s",
                    &[query(
                        "histogram_quantile(0.95, sum by (stage, le) (rate(podops_rule_wait_duration_seconds_bucket[$__rate_interval])))",
                        "{{stage}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Webhooks and overrides",
            panels: &[
                graph(
                    "Webhook requests",
                    "Requests to the services of webhook rules each second, by result.",
                    "reqps",
                    &[query(
                        "sum by (result) (rate(podops_rule_webhook_requests_total[$__rate_interval]))",
                        "{{result}}",
                    )],
                ),
                graph(
                    "Overridden rules",
                    "Rules overridden by break-glass each second.",
                    "ops",
                    &[query(
                        "sum by (namespace) (rate(podops_rule_overrides_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                        "{{namespace}}",
                    )],
                ),
            ],
        },
    ],
};

const CONSIST: Dashboard = Dashboard {
    name: "consist-operator",
    title: "Podops / Traffic",
    description: "Traffic to Pods: how long it takes to end and to begin, and the backends.",
    rows: &[
        Row {
            title: "Pods",
            panels: &[
                graph(
                    "Waiting Pods",
                    "Pods that wait for traffic to end (drain) or to begin (enable).",
                    "short",
                    &[query(
                        "sum by (direction) (podops_consist_waiting_pods{namespace=~\"$namespace\"})",
                        "{{direction}}",
                    )],
                ),
                graph(
                    "Stuck finalizers",
                    "Finalizers that have waited more than 30 seconds for removal.",
                    "short",
                    &[query(
                        "sum by (namespace) (podops_consist_stuck_finalizers{namespace=~\"$namespace\"})",
                        "{{namespace}}",
                    )],
                ),
                graph(
                    "Time until traffic ended or began, 95th percentile",
                    "From a Pod leaving service until its traffic ended, and from Ready until it has traffic.",
                    "s",
                    &[
                        query(
                            "histogram_quantile(0.95, sum by (le) (rate(podops_consist_drain_duration_seconds_bucket[$__rate_interval])))",
                            "drain",
                        ),
                        query(
                            "histogram_quantile(0.95, sum by (le) (rate(podops_consist_enable_duration_seconds_bucket[$__rate_interval])))",
                            "enable",
                        ),
                    ],
                ),
            ],
        },
        Row {
            title: "Backends",
            panels: &[
                graph(
                    "Syncs",
                    "Syncs with backends each second, by type of backend and result.",
                    "ops",
                    &[query(
                        "sum by (backend, result) (rate(podops_consist_backend_syncs_total[$__rate_interval]))",
                        "{{backend}} {{result}}",
                    )],
                ),
                graph(
                    "Duration of syncs, 95th percentile",
                    "By type of backend.",
                    "s",
                    &[query(
                        "histogram_quantile(0.95, sum by (backend, le) (rate(podops_consist_backend_sync_duration_seconds_bucket[$__rate_interval])))",
                        "{{backend}}",
                    )],
                ),
            ],
        },
    ],
};

const OPERATION_JOB: Dashboard = Dashboard {
    name: "operationjob-operator",
    title: "Podops / OperationJobs",
    description: "Jobs that replace, restart and recreate Pods.",
    rows: &[Row {
        title: "Jobs",
        panels: &[
            graph(
                "Jobs by namespace and progress",
                "OperationJobs that exist.",
                "short",
                &[query(
                    "podops_operationjob_jobs{namespace=~\"$namespace\"}",
                    "{{namespace}} {{progress}}",
                )],
            ),
            graph(
                "Finished targets",
                "Targets that finished each second, by action and result.",
                "ops",
                &[query(
                    "sum by (action, result) (rate(podops_operationjob_targets_total[$__rate_interval]))",
                    "{{action}} {{result}}",
                )],
            ),
            graph(
                "Duration of jobs, 95th percentile",
                "From the start of a job until all its targets were finished, by action.",
                "s",
                &[query(
                    "histogram_quantile(0.95, sum by (action, le) (rate(podops_operationjob_duration_seconds_bucket[$__range])))",
                    "{{action}}",
                )],
            ),
        ],
    }],
};
