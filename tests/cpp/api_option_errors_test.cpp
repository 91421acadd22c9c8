// Wrong indices, options, outputs and overlaps: what a call throws, and that it writes nothing before.
#include <gtest/gtest.h>

#include "error_case.h"

namespace kvrope {
namespace {

const ErrorCase kOptionErrors[] = {
    {"slot_mapping_rank",
     Error::value,
     "slot_mapping",
     {"(T_slot,)", "got (6, 1)"},
     [](Args& a) { a.slot_mapping = a.slot_mapping.unsqueeze(1); }},
    {"slot_mapping_dtype",
     Error::type,
     "slot_mapping",
     {"int32 or int64", "got float32"},
     [](Args& a) { a.slot_mapping = a.slot_mapping.to(at::kFloat); }},
    {"slot_mapping_too_long",
     Error::value,
     "slot_mapping",
     {"as many slots as rows of k, 7", "got 8"},
     [](Args& a) {
       a.slot_mapping = integers_like(a.q, {0, 1, 2, 3, 4, 5, 6, 7});
     }},
    {"swa_dtype",
     Error::type,
     "swa_slot_mapping",
     {"int32 or int64", "got int16"},
     [](Args& a) { a.swa_slot_mapping = a.slot_mapping.to(at::kShort); }},
    {"swa_rank",
     Error::value,
     "swa_slot_mapping",
     {"(N,)", "got (1, 6)"},
     [](Args& a) { a.swa_slot_mapping = a.slot_mapping.unsqueeze(0); }},
    {"pos_length", Error::value, "pos", {"T=5", "got (4,)"}, [](Args& a) { a.pos = a.pos.narrow(0, 0, 4); }},
    {"pos_dtype",
     Error::type,
     "pos",
     {"int32 or int64", "got bool"},
     [](Args& a) { a.pos = a.pos.to(at::kBool); }},
    {"offs_length", Error::value, "offs", {"T=5", "got (6,)"}, [](Args& a) { a.offs = a.slot_mapping; }},
    {"offs_dtype",
     Error::type,
     "offs",
     {"int32 or int64", "got float32"},
     [](Args& a) { a.offs = a.pos.to(at::kFloat); }},
    {"rotary_dim_odd",
     Error::value,
     "rotary_dim",
     {"even number from 2 to the head size 16", "got 7"},
     [](Args& a) { a.rotary_dim = 7; }},
    {"rotary_dim_zero",
     Error::value,
     "rotary_dim",
     {"even number from 2", "got 0"},
     [](Args& a) { a.rotary_dim = 0; }},
    {"rotary_dim_too_large",
     Error::value,
     "rotary_dim",
     {"head size 16", "got 18"},
     [](Args& a) { a.rotary_dim = 18; }},
    {"rotary_offset_too_large",
     Error::value,
     "rotary_dim_offset",
     {"0 to 8", "got 9"},
     [](Args& a) { a.rotary_dim_offset = 9; }},
    {"rotary_offset_negative",
     Error::value,
     "rotary_dim_offset",
     {"0 to 8", "got -1"},
     [](Args& a) { a.rotary_dim_offset = -1; }},
    {"cos_sin_width",
     Error::value,
     "cos_sin",
     {"width 8 or 16", "got 10"},
     [](Args& a) {
       a.cos_sin = like(a.cos_sin, {32, 10});
     }},
    {"cos_sin_width_without_rotary_dim",
     Error::value,
     "cos_sin",
     {"width 16 or 32", "got 8"},
     [](Args& a) { a.rotary_dim = std::nullopt, a.rotary_dim_offset = 0; }},
    {"cos_sin_rank",
     Error::value,
     "cos_sin",
     {"(P, W)", "got (256,)"},
     [](Args& a) { a.cos_sin = a.cos_sin.flatten(); }},
    {"cos_sin_dtype",
     Error::type,
     "cos_sin",
     {"float32 or float16 or bfloat16", "got float64"},
     [](Args& a) { a.cos_sin = a.cos_sin.to(at::kDouble); }},
    {"k_scale_shape",
     Error::value,
     "k_scale",
     {"(), (1,) or (KH=2,)", "got (3,)"},
     [](Args& a) { a.k_scale = like(a.cos_sin, {3}); }},
    {"v_scale_dtype",
     Error::type,
     "v_scale",
     {"float32", "got float16"},
     [](Args& a) { a.v_scale = like(a.cos_sin, {2}).to(at::kHalf); }},
    {"v_scale_undefined",
     Error::value,
     "v_scale",
     {"expected shape", "got"},
     [](Args& a) { a.v_scale = at::Tensor(); }},
    {"q_out_shape",
     Error::value,
     "q_out",
     {"T=5", "got (4, 6, 16)"},
     [](Args& a) {
       a.q_out = like(a.q, {4, 6, 16});
     }},
    {"q_out_dtype",
     Error::type,
     "q_out",
     {"bfloat16", "got float32"},
     [](Args& a) {
       a.q_out = like(a.cos_sin, {5, 6, 16});
     }},
    {"q_out_is_no_view_of_rows",
     Error::value,
     "q_out",
     {"view as (T, QH * D)", "got strides"},
     [](Args& a) {
       a.q_out = like(a.q, {5, 6, 17}).narrow(2, 0, 16);
     }},
    {"k_out_shape",
     Error::value,
     "k_out",
     {"Tk=7", "got (5, 2, 16)"},
     [](Args& a) {
       a.k_out = like(a.k, {5, 2, 16});
     }},
    {"k_out_dtype",
     Error::type,
     "k_out",
     {"bfloat16", "got float32"},
     [](Args& a) {
       a.k_out = like(a.cos_sin, {7, 2, 16});
     }},
    {"zeros_out_shape",
     Error::value,
     "zeros_out",
     {"QH=6", "got (5, 96, 1)"},
     [](Args& a) {
       a.zeros_out = like(a.q, {5, 96, 1});
     }},
    {"zeros_out_dtype",
     Error::type,
     "zeros_out",
     {"bfloat16", "got float16"},
     [](Args& a) { a.zeros_out = a.q.to(at::kHalf); }},
    {"meta_among_real", Error::value, "v", {"like q", "got meta"}, [](Args& a) { a.v = a.v.to(at::kMeta); }},
    {"sparse",
     Error::value,
     "cos_sin",
     {"strided", "layout"},
     [](Args& a) { a.cos_sin = a.cos_sin.to_sparse(); }},
    {"q_out_shares_with_k",
     Error::value,
     "q_out",
     {"memory of its own", "shared with k"},
     [](Args& a) {
       const at::Tensor rows = like(a.q, {7, 6, 16});
       a.q_out = rows.narrow(0, 0, 5), a.k = rows.narrow(1, 4, 2);
     }},
    {"k_out_shifted_from_k",
     Error::value,
     "k_out",
     {"exactly that of k", "shared with k"},
     [](Args& a) {
       const at::Tensor rows = like(a.k, {8, 2, 16});
       a.k = rows.narrow(0, 0, 7), a.k_out = rows.narrow(0, 1, 7);
     }},
    {"value_cache_shares_with_key_cache",
     Error::value,
     "value_cache",
     {"memory of its own", "shared with key_cache"},
     [](Args& a) {
       const at::Tensor pages = like(a.k, {4, 24, 2, 39});
       a.key_cache = pages.narrow(3, 0, 16), a.value_cache = pages.narrow(3, 15, 24);
     }},
    {"zeros_out_shares_with_q",
     Error::value,
     "zeros_out",
     {"memory of its own", "shared with q"},
     [](Args& a) { a.zeros_out = a.q; }},
    {"cache_shares_with_slots",
     Error::value,
     "value_cache",
     {"memory of its own", "shared with slot_mapping"},
     [](Args& a) { a.slot_mapping = a.value_cache.view(at::kLong).flatten().narrow(0, 0, 6); }},
    {"k_out_expanded",
     Error::value,
     "k_out",
     {"without elements that share memory", "strides (0, 16, 1)"},
     [](Args& a) {
       a.k_out = like(a.k, {1, 2, 16}).expand({7, 2, 16});
     }},
};

const ErrorCase kMropeErrors[] = {
    {"two_sections",
     Error::value,
     "mrope_section",
     {"three sizes of at least 0 with sum rotary_dim / 2 = 4", "got (2, 2)"},
     [](Args& a) {
       a.mrope_section = std::vector<int64_t>{2, 2};
     }},
    {"section_sum",
     Error::value,
     "mrope_section",
     {"= 4, got (2, 1, 2)"},
     [](Args& a) {
       a.mrope_section = std::vector<int64_t>{2, 1, 2};
     }},
    {"section_sum_of_rotary_dim",
     Error::value,
     "mrope_section",
     {"= 2, got (2, 1, 1)"},
     [](Args& a) {
       a.rotary_dim = 4, a.cos_sin = like(a.cos_sin, {32, 4});
       a.mrope_section = std::vector<int64_t>{2, 1, 1};
     }},
    {"negative_section",
     Error::value,
     "mrope_section",
     {"got (6, -1, -1)"},
     [](Args& a) {
       a.mrope_section = std::vector<int64_t>{6, -1, -1};
     }},
    {"section_beyond_64_bits",
     Error::value,
     "mrope_section",
     {"= 4"},
     [](Args& a) {
       a.mrope_section = std::vector<int64_t>{INT64_MAX, INT64_MAX, 6};
     }},
    {"interleaved_without_section",
     Error::value,
     "mrope_interleaved",
     {"expected False, since there is no mrope_section, got True"},
     [](Args& a) { a.mrope_interleaved = true; }},
    {"three_rows_of_pos_without_section",
     Error::value,
     "pos",
     {"(T=5,)", "got (3, 5)"},
     [](Args& a) {
       a.pos = a.pos.expand({3, 5});
     }},
    {"two_rows_of_pos",
     Error::value,
     "pos",
     {"(axes=3, T=5)", "got (2, 5)"},
     [](Args& a) {
       a.mrope_section = std::vector<int64_t>{2, 1, 1};
       a.pos = a.pos.expand({2, 5});
     }},
    {"pos_of_too_few_tokens",
     Error::value,
     "pos",
     {"(axes=3, T=5)", "got (3, 4)"},
     [](Args& a) {
       a.mrope_section = std::vector<int64_t>{2, 1, 1};
       a.pos = a.pos.narrow(0, 0, 4).expand({3, 4});
     }},
};

at::Tensor fp8_like(const at::Tensor& tensor) {
  return at::zeros(tensor.sizes(), tensor.options().dtype(at::kByte)).view(at::kFloat8_e4m3fn);
}

at::Tensor floats_like(const at::Tensor& tensor, std::vector<int64_t> shape) {
  return at::ones(shape, tensor.options().dtype(at::kFloat));
}

const ErrorCase kQueryScaleErrors[] = {
    {"q_scale_without_fp8",
     Error::value,
     "q_scale",
     {"expected none, since q_out is bfloat16 and no fp8"},
     [](Args& a) { a.q_scale = floats_like(a.q, {}); }},
    {"q_scale_shape",
     Error::value,
     "q_scale",
     {"(), (1,) or (KH=2,)", "got (6,)"},
     [](Args& a) { a.q_out = fp8_like(a.q), a.q_scale = floats_like(a.q, {6}); }},
    {"q_scale_dtype",
     Error::type,
     "q_scale",
     {"float32", "float64"},
     [](Args& a) { a.q_out = fp8_like(a.q), a.q_scale = floats_like(a.q, {}).to(at::kDouble); }},
    {"q_out_dtype",
     Error::type,
     "q_out",
     {"bfloat16 or float8_e4m3fn or float8_e5m2", "uint8"},
     [](Args& a) { a.q_out = at::zeros_like(a.q).to(at::kByte); }},
    {"q_out_on_q",
     Error::value,
     "q_out",
     {"memory of its own or exactly that of q"},
     [](Args& a) { a.q_out = a.q.view(at::kFloat8_e4m3fn).slice(2, 0, c10::nullopt, 2); }},
};

const ErrorCase kNormErrors[] = {
    {"q_weight_shape",
     Error::value,
     "q_weight",
     {"(D=16,)", "(15,)"},
     [](Args& a) { a.q_weight = like(a.q, {15}); }},
    {"k_weight_rank",
     Error::value,
     "k_weight",
     {"(D=16,)", "(1, 16)"},
     [](Args& a) {
       a.k_weight = like(a.q, {1, 16});
     }},
    {"q_weight_undefined",
     Error::value,
     "q_weight",
     {"(D=16,)", "none"},
     [](Args& a) { a.q_weight = at::Tensor(); }},
    {"k_weight_dtype",
     Error::type,
     "k_weight",
     {"float64"},
     [](Args& a) { a.k_weight = like(a.q, {16}).to(at::kDouble); }},
    {"eps_negative",
     Error::value,
     "eps",
     {"finite number of at least 0", "-0.5"},
     [](Args& a) { a.q_weight = like(a.q, {16}), a.eps = -0.5; }},
    {"eps_no_fp32",
     Error::value,
     "eps",
     {"finite number of at least 0", "1e+39"},
     [](Args& a) { a.k_weight = like(a.q, {16}), a.eps = 1e39; }},
    {"plus_one_without_weight",
     Error::value,
     "weight_plus_one",
     {"neither q_weight nor k_weight"},
     [](Args& a) { a.weight_plus_one = true; }},
    {"k_out_over_weight",
     Error::value,
     "k_out",
     {"memory of its own", "shared with q_weight"},
     [](Args& a) {
       a.k_out = like(a.k, {7, 2, 16});
       a.q_weight = a.k_out->view({-1}).narrow(0, 0, 16);
     }},
};

// Values out of range: errors on the CPU alone.
const ErrorCase kIndexErrors[] = {
    {"slot",
     Error::index,
     "slot_mapping[2]",
     {"is 96", "below 96"},
     [](Args& a) {
       a.slot_mapping = integers_like(a.q, {9, -1, 96, 23, 30, 71});
     }},
    {"slot_of_a_kv_only_row",
     Error::index,
     "slot_mapping[5]",
     {"is 9223372036854775807", "below 96"},
     [](Args& a) {
       a.slot_mapping = integers_like(a.q, {9, -1, 95, 23, 30, INT64_MAX});
     }},
    {"slot_past_the_window_table",
     Error::index,
     "slot_mapping[3]",
     {"is 3", "below 3"},
     [](Args& a) {
       a.slot_mapping = integers_like(a.q, {0, 1, 2, 3});
       a.swa_slot_mapping = integers_like(a.q, {4, 5, 6});
     }},
    {"slot_with_an_empty_window_table",
     Error::index,
     "slot_mapping[1]",
     {"is 0", "below 0"},
     [](Args& a) {
       a.slot_mapping = integers_like(a.q, {-1, 0});
       a.swa_slot_mapping = integers_like(a.q, {});
     }},
    {"window_slot",
     Error::index,
     "swa_slot_mapping",
     {"96", "row 1", "below 96"},
     [](Args& a) {
       a.slot_mapping = integers_like(a.q, {0, 2, 1});
       a.swa_slot_mapping = integers_like(a.q, {4, -1, 96});
     }},
    {"position_past_the_table",
     Error::index,
     "pos[3]",
     {"is 32", "0 to 31"},
     [](Args& a) {
       a.pos = integers_like(a.q, {0, 31, 7, 32, 12});
     }},
    {"position_negative",
     Error::index,
     "pos[0]",
     {"is -1", "0 to 31"},
     [](Args& a) {
       a.pos = integers_like(a.q, {-1, 31, 7, 3, 12});
     }},
    {"position_with_offset",
     Error::index,
     "pos[4] + offs",
     {"is 36", "0 to 31"},
     [](Args& a) {
       a.offs = integers_like(a.q, {0, 0, 0, 0, 24});
     }},
    {"position_that_overflows",
     Error::index,
     "pos[4] + offs",
     {"is 9223372036854775807", "0 to 31"},
     [](Args& a) {
       a.offs = integers_like(a.q, {0, 0, 0, 0, INT64_MAX});
     }},
};

class OptionError : public testing::TestWithParam<ErrorParam> {};

TEST_P(OptionError, IsNamedBeforeAnythingIsWritten) {
  expect_error(std::get<0>(GetParam()), std::get<1>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Options, OptionError,
                         testing::Combine(testing::ValuesIn(kOptionErrors),
                                          testing::ValuesIn(test_devices())),
                         error_case_name);
INSTANTIATE_TEST_SUITE_P(Norms, OptionError,
                         testing::Combine(testing::ValuesIn(kNormErrors), testing::ValuesIn(test_devices())),
                         error_case_name);
INSTANTIATE_TEST_SUITE_P(Mrope, OptionError,
                         testing::Combine(testing::ValuesIn(kMropeErrors), testing::ValuesIn(test_devices())),
                         error_case_name);
INSTANTIATE_TEST_SUITE_P(QueryScale, OptionError,
                         testing::Combine(testing::ValuesIn(kQueryScaleErrors),
                                          testing::ValuesIn(test_devices())),
                         error_case_name);
INSTANTIATE_TEST_SUITE_P(Indices, OptionError,
                         testing::Combine(testing::ValuesIn(kIndexErrors), testing::Values(at::kCPU)),
                         error_case_name);

}  // namespace
}  // namespace kvrope
