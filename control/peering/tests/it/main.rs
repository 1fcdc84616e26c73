//! The verbs of users, on two real API servers. A stand-in plays operators and gateways.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

mod check;
mod one;
mod plan;
mod several;
mod tour;
mod waits;
mod world;
mod wrong;

use strait_control_lab::peering::World;

#[tokio::test]
async fn clusters_are_joined_and_separated() {
    let Some(world) = World::start().await else { return };

    wrong::changes_nothing(&world).await;
    wrong::is_not_waited_for_longer_than_typed(&world).await;
    wrong::a_conflicting_generated_id_is_warned_of(&world).await;
    wrong::a_certificate_is_called_untrusted(&world).await;
    tour::two_clusters(&world).await;
    one::verbs_about_one_cluster(&world).await;
    several::gateways_of_one_peering(&world).await;
}

#[tokio::test]
async fn every_wait_ends_with_the_last_state() {
    let Some(world) = World::start().await else { return };

    waits::each_ends(&world).await;
    waits::former_generations_are_not_taken_for_done(&world).await;
    waits::a_known_cause_is_named(&world).await;
    waits::remains_without_an_operator_are_reported(&world).await;
    waits::an_api_server_that_restarts_is_waited_for(world).await;
}

#[tokio::test]
async fn a_plan_predicts_the_result() {
    let Some(world) = World::start().await else { return };

    plan::predictions(&world).await;
    check::problems_are_found(&world).await;
}
