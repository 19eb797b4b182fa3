//! The contract suite: what every [`RunStore`](crate::RunStore) must keep, ours or a third party's.
//!
//! Implement [`Harness`] for your store and write, in a test file of your own:
//!
//! ```ignore
//! logreel_store::contract_tests!(MyHarness::new());
//! ```
//!
//! It makes one named test per rule and runtime flavour. The expression is evaluated for each test,
//! so that every rule has data of its own. Each rule ends with the laws of [`check_run`] over all
//! runs and once more after the store was reopened.

mod append;
mod command;
mod concurrent;
mod create;
mod env;
mod erase;
mod facts;
mod fork;
mod import;
mod lease;
mod limit;
mod model;
mod read;
mod world;

use std::future::Future;

pub use append::*;
pub use command::*;
pub use concurrent::*;
pub use create::*;
pub use env::TestEnv;
pub use erase::*;
pub use fork::*;
pub use import::*;
pub use lease::*;
pub use limit::*;
pub use model::*;
pub use read::*;
use world::World;
pub use world::{Harness, check_run};

/// Makes one test per rule, on a runtime with one thread and on one with several.
#[macro_export]
macro_rules! contract_tests {
    ($harness:expr) => {
        $crate::contract_tests! { @rules flavours $harness }
    };
    // For a store with a runtime of its own: who calls it makes no difference.
    (multi_thread: $harness:expr) => {
        $crate::contract_tests! { @rules many $harness }
    };
    (@rules $how:ident $harness:expr) => {
        $crate::contract_tests! { @$how $harness;
            append_is_atomic_all_or_nothing
            append_lands_only_on_the_head_it_was_decided_on
            append_with_the_same_id_gets_the_first_answer
            append_ids_are_unique_within_their_run_only
            an_unknown_run_is_not_found
            append_of_a_stale_epoch_is_fenced
            a_payload_over_the_ceiling_is_refused_by_name
            after_the_end_only_late_facts_until_the_lease_is_released
            times_never_decrease_and_a_callers_time_is_kept
            a_body_is_stored_exactly_as_it_was_written
            the_row_is_the_fold_of_the_whole_log
            blobs_live_as_long_as_a_run_refers_to_them
            a_blob_that_comes_ahead_of_its_event_is_kept_for_an_hour
            context_nodes_stay_while_a_later_run_goes_on_from_them
            a_context_node_reads_back_whatever_the_log_has_of_it
            a_command_needs_no_lease_and_bumps_no_epoch
            a_command_sent_twice_gets_the_same_receipt
            a_request_id_is_for_one_request
            a_cancel_always_lands_and_twice_is_harmless
            a_refused_command_writes_nothing
            an_answer_after_the_deadline_records_the_timeout
            a_pause_waits_at_once_until_a_resume
            a_signal_ends_its_wait_in_the_same_append
            create_writes_event_1_and_may_take_the_lease
            create_stores_the_blobs_of_event_1
            a_name_that_is_too_long_is_refused_by_name
            create_with_the_same_id_or_key_attaches_or_conflicts
            attaching_compares_with_how_the_run_was_started
            create_in_a_busy_session_names_the_active_run
            a_run_that_is_over_when_it_is_created_takes_no_sessions_place
            a_dead_driver_of_an_ended_run_does_not_block_its_session
            a_closed_session_refuses_new_runs
            a_child_is_created_only_while_its_parent_lives
            the_key_of_a_deleted_run_is_kept_for_30_days
            delete_takes_ended_runs_that_nobody_needs
            a_fork_shares_its_parents_log_up_to_an_event
            the_row_of_a_fork_is_the_fold_of_the_whole_log
            appends_to_a_fork_land_after_what_it_shares
            forks_of_forks_go_back_to_whoever_wrote_each_event
            a_fork_is_made_before_the_end_of_a_known_run_only
            a_run_that_is_forked_from_cannot_be_deleted
            a_fork_with_the_same_id_attaches_or_conflicts
            what_is_changed_in_a_fork_follows_it_in_the_same_transaction
            a_queued_fork_is_found_and_claimed_like_any_run
            an_imported_run_is_what_it_was
            an_import_is_read_only_until_it_is_taken_over
            an_import_goes_on_from_what_is_here
            an_import_does_not_take_a_silent_driver_for_dead
            an_import_that_does_not_hold_writes_nothing
            a_fork_is_imported_whole
            news_tell_of_an_import_once_in_its_order
            an_erased_run_leaves_headers_status_and_counts
            a_run_that_others_hold_is_erased_with_them_only
            a_conversation_is_held_by_all_that_go_on_from_it
            a_fork_that_came_whole_holds_what_its_forebears_held
            an_unfinished_import_is_erased
            a_queued_run_is_claimed_by_one
            what_a_dead_owner_held_is_orphaned_at_once
            a_silent_owner_is_dead_after_the_lease
            a_silent_owner_that_lost_its_lease_is_not_known_dead_until_it_leaves
            an_expired_lease_that_was_not_taken_still_appends
            a_released_run_is_ready_for_the_next_worker
            a_waiting_run_is_ready_at_its_deadline_only
            a_waiting_run_of_a_dead_owner_waits_on
            a_wait_that_ended_makes_its_run_ready_beside_another
            a_childs_end_makes_its_waiting_parent_ready
            waiting_children_of_an_ended_parent_are_found
            a_child_that_was_announced_and_never_made_makes_its_waiting_parent_ready
            an_ended_run_is_never_claimed
            leaving_gives_the_leases_of_ended_runs_back
            a_clock_that_went_back_hides_no_ready_run
            five_takeovers_without_a_result_are_a_crash_loop
            claimable_lists_what_a_worker_can_drive_oldest_first
            claimable_runs_are_chosen_by_label
            who_drives_and_what_waits_for_them_is_told
            of_claims_racing_for_places_as_many_win_as_there_are
            of_creates_racing_for_places_as_many_drive_as_there_are
            a_place_is_free_after_a_release_a_wait_an_end_and_a_death
            a_place_whose_lease_ran_out_is_taken_from_its_holder
            runs_over_a_limit_hide_nobody
            a_fork_keeps_to_the_limit_of_its_parent
            pages_join_without_a_gap
            a_scan_hands_over_the_log_in_order
            runs_list_in_the_order_of_creation
            lists_filter_by_every_field
            orphans_are_listed_alone_and_beside_statuses
            search_finds_whole_words_of_input_output_agent_and_labels
            find_takes_a_prefix_or_the_short_form
            sessions_show_their_runs_and_the_active_one
            news_tell_of_every_event_once_in_the_order_it_was_stored
            stats_count_what_is_there
            doorbells_ring_for_every_change_by_whoever_made_it
            appends_to_many_runs_all_land
            a_refused_append_of_a_batch_fails_alone
            of_appends_racing_on_one_head_one_lands
            the_same_append_sent_by_many_lands_once
            commands_never_conflict_beside_a_busy_driver
            of_creates_racing_for_one_name_one_is_new
            of_claims_racing_for_one_run_one_drives
            a_tail_sees_every_event_once_while_others_are_deleted
            a_random_history_is_that_of_the_specification
        }
    };
    (@flavours $harness:expr; $($rule:ident)*) => {
        /// The rules on a runtime with one thread.
        mod current_thread {
            #[allow(unused_imports, reason = "the harness may be named from here")]
            use super::*;
            $(#[test]
            fn $rule() {
                $crate::contract::on_one_thread(async { $crate::contract::$rule(&$harness).await });
            })*
        }

        $crate::contract_tests! { @many $harness; $($rule)* }
    };
    (@many $harness:expr; $($rule:ident)*) => {
        /// The rules on a runtime with several threads.
        mod multi_thread {
            #[allow(unused_imports, reason = "the harness may be named from here")]
            use super::*;
            $(#[test]
            fn $rule() {
                $crate::contract::on_many_threads(async { $crate::contract::$rule(&$harness).await });
            })*
        }
    };
}

/// Runs a rule as an embedder with a single-thread runtime would.
pub fn on_one_thread(rule: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(rule);
}

/// Runs a rule on a runtime with four threads.
pub fn on_many_threads(rule: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(rule);
}
