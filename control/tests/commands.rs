//! What users ask of clusters, on two real API servers. Somebody stands in for operators and gateways.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

// Under the name that it has in the other crates, whose tests share the harness.
extern crate strait_control as control;

#[path = "commands/one.rs"]
mod one;
#[path = "commands/plan.rs"]
mod plan;
#[path = "commands/tour.rs"]
mod tour;
#[path = "commands/waits.rs"]
mod waits;
#[path = "commands/world.rs"]
mod world;
#[path = "commands/wrong.rs"]
mod wrong;

use strait_control_lab::peering::World;

#[tokio::test]
async fn clusters_are_joined_and_taken_apart() {
    let Some(world) = World::start().await else { return };

    wrong::changes_nothing(&world).await;
    wrong::is_not_waited_for_longer_than_typed(&world).await;
    wrong::a_generated_id_beside_a_typed_one_is_warned_of(&world).await;
    wrong::a_certificate_is_called_untrusted(&world).await;
    tour::two_clusters(&world).await;
    one::verbs_about_one_cluster(&world).await;
}

#[tokio::test]
async fn every_wait_ends_with_what_was_found() {
    let Some(world) = World::start().await else { return };

    waits::each_ends(&world).await;
    waits::what_was_before_is_not_taken_for_done(&world).await;
    waits::a_known_cause_is_named(&world).await;
    waits::what_stays_without_an_operator_is_named(&world).await;
    waits::an_api_server_that_restarts_is_waited_for(world).await;
}

#[tokio::test]
async fn what_is_planned_is_what_is_then_done() {
    let Some(world) = World::start().await else { return };

    plan::foretells(&world).await;
    plan::finds_what_is_wrong(&world).await;
}
