"""What users had stumbled over, in 22 points: for each one at least three cases, which other modules test."""

import re
from pathlib import Path

import pytest

from tests.test_first_steps import NAMES_THE_WAY, WORKS

POINTS = {
    "1: tests under load": "test_hostile.py threads_give_identical_results random_state_and_filters_are_left_alone\n"
    "backends/numba/test_share.py the_error_of_a_later_slice_was_raised slices_that_share_again_stay_on_their_thread",
    "2: a thousand time steps": "nonlinear/test_time_steps.py a_thousand_steps_never_fail "
    "a_pendulum_with_a_rigid_rod_starts_from_rest\nnonlinear/test_previous.py later_steps_neither_detect_nor_assemble\n"
    "nonlinear/test_sparse_newton.py a_tolerance_below_rounding_error_costs_no_second_attempt",
    "3: F(x, parameter) of a branch": "a fold, a branch of two, a branch by mu\n"
    "test_first_steps.py a_branch_over_a_parameter_that_has_a_default\n"
    "branches/test_continuation.py a_named_parameter_is_passed_by_keyword",
    "4: sparse J of anything": "result.jacobian(), result.jacobian() of few, J of a copied result\n"
    "test_first_steps.py jacobians_are_sparse_without_a_declaration the_jacobian_of_a_plain_function_and_of_a_batch",
    "5: tiny unknowns between bounds": "friction factors, tiny numbers\nnonlinear/test_logarithmic.py "
    "amounts_of_all_sizes_are_accurate bounds_at_zero_alone_are_enough a_batch_in_logarithms\n"
    "nonlinear/test_bounds.py fractions_near_zero_with_fast_reactions_stopped_at_a_bound",
    "6: limits act on lack of progress": "test_iteration_limits.py progress_is_not_cut_short\n"
    "test_budgets.py a_system_whose_largest_residual_falls_late_is_not_given_up systems_without_roots_are_given_up",
    "7: dense systems": "linearize/test_shifts.py paths_in_time_take_few_evaluations kernels_make_toeplitz_blocks "
    "other_full_jacobians_cost_two_evaluations_more\nnonlinear/test_equilibrated.py far_starts_by_defaults",
    "8: kinds of arrays and numbers": "jac: np.matrix, jac: a frame, jac: matrix of mpmath, F of Decimals, F: objects, "
    "F: long double, F: every second number, F of float32, F in float32, drop-in: F in float32",
    "9: nothing on the console": "nonlinear/test_sparse_inverse.py a_solve_prints_nothing\nnonlinear/test_units.py "
    "infinite_equations_warned_where_they_were_divided_by_their_size\nnonlinear/test_logarithmic.py "
    "a_jacobian_that_is_not_finite_stays_from_lapack\ntest_monitor.py nothing_is_printed_without_a_monitor",
    "10: identity, counts, causes": "test_result.py problems_and_results_are_compared_by_identity "
    "a_summary_counts_accepted_steps_beside_the_tried_ones_of_its_table\ndiagnostics/test_explain.py "
    "one_cause_is_named_and_no_condition_number_beside_it past_its_fold_bratu_is_a_minimum_and_continuation_is_named",
    "11: parameters without ceremony": "derivative by a parameter, root: args, root: partial\n"
    "derivatives/test_parameter_differences.py gradients_without_ceremony\n"
    "test_parameters.py an_array_is_the_second_argument a_state_may_be_a_dict_of_arrays",
    "12: monitors": "root: monitor=True, root: progress=True, monitor of one argument, monitor of four\n"
    "test_monitor.py progress_bar_on_a_terminal_is_one_line_for_each_solve",
    "13: results": "result['x'], result.nfev, nit, njev, result from a pickle, previous: a path, previous: a list\n"
    "test_result.py printing_a_result_shows_few_unknowns_and_never_many another_file_is_refused_and_nothing_in_it_is_"
    "executed results_are_frozen_and_survive_copies_pickles_and_files",
    "14: SciPy's habits": "root: a bound of None, pairs of bounds, x0: {1.0}, jac='2-point', jac='cs', jac_sparsity, "
    "Problem(jacobian=), stop(tol=), guess",
    "15: types": "test_typing.py a_typed_program\ntest_first_steps.py public_names_alone_complete\n"
    "test_names.py any_does_not_stand_where_a_type_is_known\ntest_import.py py_typed_is_shipped",
    "16: own work": "nonlinear/test_dense_newton.py takes_no_more_than_hybr_plus_three\nbenchmarks/test_structure.py "
    "the_figures_of_this_tree_are_within_the_stored_ones\n"
    "docs/test_docs.py the_start_page_s_numbers_are_those_of_the_performance_page",
    "17: plots": "diagnostics/test_plots.py a_spectrum_is_that_of_j_unless_the_problem_is_a_fixed_point "
    "curves_of_several_calls_share_axes_without_sharing_a_color_or_the_target "
    "several_results_have_their_labels_and_differ_without_color axes_are_used_and_returned",
    "18: the report": "test_report.py gradients_are_really_compared newton_krylov_is_really_compared "
    "what_is_not_installed_is_no_failure a_package_that_cannot_be_imported_is_named_with_the_reason",
    "19: pages": "docs/test_docs.py every_public_name_is_in_the_reference every_public_package_has_a_page\n"
    "docs/test_check_links.py nothing_is_broken what_is_loaded_from_another_host_is_found",
    "20: the package": "test_release.py the_version_is_one_that_can_be_released the_citation_is_of_this_version "
    "the_newest_section_of_the_changelog_is_this_version_s the_citation_names_the_four_papers "
    "the_release_workflow_is_the_only_one_that_may_ask_for_an_identity",
    "21: docstrings": "test_import.py public_name_exists_and_has_a_docstring\ntest_settings.py "
    "the_default_is_the_documented_one\ntest_names.py functions_are_not_named_by_a_participle_alone",
    "22: examples": "examples/test_flowsheet.py elements_are_conserved_and_gradients_are_those_of_solves\n"
    "examples/test_diode_2d.py the_curve_is_that_of_a_diode\nexamples/test_calibration.py the_misfit_falls\n"
    "examples/test_hyperelastic_block.py a_uniform_strain_has_the_force_of_hooke",
}  # fmt: skip


@pytest.mark.parametrize("cases", POINTS.values(), ids=POINTS)
def test_three_cases_of_each_point_are_there(cases: str) -> None:
    found = 0
    for line in cases.splitlines():
        module, *names = line.split()
        if module.endswith(".py"):
            text = (Path(__file__).parent / module).read_text(encoding="utf-8")
            assert not [name for name in names if f"\ndef test_{name}(" not in text]
        else:
            names = re.split(", (?!nit|njev)", line)
            assert set(names) <= {*WORKS, *NAMES_THE_WAY}
        found += len(names)
    assert found >= 3
