#include "runner/oracle.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace kvrope::regress {
namespace {

constexpr double kFp32Tiny = 0x1p-149;  // what fp32 loses where it has subnormals only
constexpr double kDivideOrReciprocal =
    0x1p-22;  // relative distance of x / s and x * (1 / s) in fp32, with room

// 1 / sqrt(mean of squares + eps) of each of so many heads. A sum that no fp32 holds is infinite.
std::vector<double> norm_factors(const float* heads, int64_t count, int64_t dims, double eps) {
  std::vector<double> factors;
  for (int64_t head = 0; head < count; ++head, heads += dims) {
    double sum = 0;
    for (int64_t d = 0; d < dims; ++d) sum += static_cast<double>(heads[d]) * heads[d];
    factors.push_back(1 / std::sqrt(limit_to_fp32_range(sum) / static_cast<double>(dims) + eps));
  }
  return factors;
}

// The nearest fp32 value. The product of two fp32 values is exact in double, so that this rounds it once.
double rounded_to_fp32(double value) {
  return static_cast<float>(limit_to_fp32_range(value));
}

// Positions have the axes that the section takes, and the section has all frequencies.
bool has_axes(const CaseSpec& spec) {
  if (!spec.has_section()) return spec.position_axes() == 1 && !(spec.mrope && spec.mrope->interleaved);
  const std::vector<int64_t>& section = *spec.mrope->section;
  int64_t axes = spec.position_axes(), sum = std::accumulate(section.begin(), section.end(), int64_t{0});
  return section.size() == 3 && sum == spec.rotated_dims() / 2 && (axes == 1 || axes == 3);
}

bool fits_q_scale(const CaseSpec& spec, const CallData& data) {
  if (!data.q_scale) return true;
  if (spec.q_heads % spec.kv_heads != 0) return false;
  auto count = static_cast<int64_t>(data.q_scale->size());
  return spec.q_out_dtype.has_value() && (count == 1 || count == spec.kv_heads);
}

}  // namespace

Oracle::Oracle(const CaseSpec& spec, const CallData& data)
    : spec_(spec),
      data_(data),
      tokens_(spec.tokens()),
      capacity_(data.plan.num_blocks * spec.block_size),
      rotary_dim_(spec.rotated_dims()),
      width_(spec.table_width()) {
  bool has_positions = static_cast<int64_t>(data.plan.pos.front().size()) == tokens_ &&
                       (!data.plan.offs || static_cast<int64_t>(data.plan.offs->size()) == tokens_);
  bool has_table = rotary_dim_ >= 2 && rotary_dim_ % 2 == 0 &&
                   (width_ == rotary_dim_ || width_ == 2 * rotary_dim_) &&
                   spec.rotary_dim_offset + rotary_dim_ <= spec.head_dim;
  bool has_rows = spec.kv_rows() >= tokens_ && spec.slots_length() <= spec.kv_rows();
  if (!has_positions || !has_table || !has_rows || !has_axes(spec) || !fits_q_scale(spec, data)) {
    throw std::invalid_argument(
        "the call returned, but its sizes do not fit each other and it should have raised");
  }
  if (spec.norms_q())
    q_factors_ = norm_factors(data.q.data(), tokens_ * spec.q_heads, spec.head_dim, spec.norm->eps);
  if (spec.norms_k())
    k_factors_ = norm_factors(data.k.data(), tokens_ * spec.kv_heads, spec.head_dim, spec.norm->eps);
}

// The sum is that of 64-bit integers; one that overflows is in no table.
int64_t Oracle::position_of(int64_t row, size_t axis) const {
  int64_t position = data_.plan.pos[axis][static_cast<size_t>(row)];
  if (!data_.plan.offs) return position;
  if (__builtin_add_overflow(position, (*data_.plan.offs)[static_cast<size_t>(row)], &position)) return -1;
  return position;
}

bool Oracle::position_in_table(int64_t row) const {
  for (size_t axis = 0; axis < data_.plan.pos.size(); ++axis) {
    int64_t position = position_of(row, axis);
    if (position < 0 || position >= data_.plan.table_rows) return false;
  }
  return true;
}

Oracle::Angle Oracle::angle_of(int64_t row) const {
  if (position_in_table(row)) return Angle::in_table;
  bool is_padding = destination(data_.plan, capacity_, row).kind == Destination::Kind::padding;
  return is_padding ? Angle::zero_row : Angle::nan_row;
}

Destination Oracle::destination_of(int64_t row) const {
  Destination to = destination(data_.plan, capacity_, row);
  bool is_lost = to.kind == Destination::Kind::slot && row < tokens_ && !position_in_table(row);
  return is_lost ? Destination{Destination::Kind::out_of_range} : to;
}

bool Oracle::has_faults() const {
  for (int64_t row = 0; row < spec_.slots_length(); ++row) {
    if (destination_of(row).kind == Destination::Kind::out_of_range) return true;
  }
  return false;
}

double Oracle::Head::at(int64_t dim) const {
  if (weight == nullptr) return values[dim];
  return values[dim] * factor * (plus_one + static_cast<double>(weight[dim]));
}

// Of two roundings; the weight multiplies the error of the first.
double Oracle::Head::subnormal_error(int64_t dim) const {
  if (weight == nullptr) return 0;
  return kFp32Tiny / 2 * (std::fabs(plus_one + static_cast<double>(weight[dim])) + 1);
}

Oracle::Head Oracle::head_of(const std::vector<float>& rows, const std::vector<double>& factors,
                             const std::vector<float>& weight, int64_t head) const {
  const float* values = rows.data() + head * spec_.head_dim;
  if (factors.empty()) return {values};
  return {values, factors[static_cast<size_t>(head)], weight.data(), spec_.norm->plus_one ? 1.0 : 0.0};
}

Oracle::CosSin Oracle::cos_sin_at(int64_t row, int64_t pair, int64_t j) const {
  size_t axis = data_.plan.pos.size() > 1 ? static_cast<size_t>(spec_.mrope->axis_of(pair)) : 0;
  const float* angles = data_.cos_sin.data() + position_of(row, axis) * width_;
  if (width_ == 2 * rotary_dim_) return {angles[j], angles[rotary_dim_ + j]};
  return {angles[pair], angles[rotary_dim_ / 2 + pair]};
}

Want Oracle::rotate(const Head& head, int64_t dim, int64_t row) const {
  switch (angle_of(row)) {
    case Angle::in_table:
      break;
    case Angle::zero_row:
      return {0.0};
    case Angle::nan_row:
      return {std::numeric_limits<double>::quiet_NaN()};
  }
  int64_t j = dim - spec_.rotary_dim_offset;  // place in the rotated part
  double ulps = spec_.dtype == NumberFormat::fp32 ? 0 : spec_.tolerance.ulps;
  double own = head.at(dim);
  if (j < 0 || j >= rotary_dim_) {
    if (head.weight == nullptr) return {own};
    return {limit_to_fp32_range(own), spec_.tolerance.relative * std::fabs(own) + head.subnormal_error(dim),
            ulps};
  }

  int64_t half = rotary_dim_ / 2;
  bool is_first = spec_.is_neox ? j < half : j % 2 == 0;
  int64_t pair = spec_.is_neox ? j % half : j / 2;
  int64_t distance = spec_.is_neox ? half : 1;  // to the other element of the pair
  int64_t other_dim = is_first ? dim + distance : dim - distance;
  double other = head.at(other_dim);

  auto [cosine, sine] = cos_sin_at(row, pair, j);
  // a' = a cos - b sin, b' = b cos + a sin. The second product is rounded to fp32 before it is added: where
  // the two cancel, its rounding is all that is left.
  double product = rounded_to_fp32(other * sine);
  double result = own * cosine + (is_first ? -product : product);
  double slack = spec_.tolerance.relative * (std::fabs(own * cosine) + std::fabs(other * sine)) + kFp32Tiny;
  slack += head.subnormal_error(dim) * std::fabs(cosine) + head.subnormal_error(other_dim) * std::fabs(sine);
  return {limit_to_fp32_range(result), slack, ulps};
}

Want Oracle::q_out(int64_t row, int64_t head, int64_t dim) const {
  Want want = rotate(head_of(data_.q, q_factors_, data_.q_weight, row * spec_.q_heads + head), dim, row);
  if (!data_.q_scale || angle_of(row) == Angle::zero_row) return want;
  return scaled(want, *data_.q_scale, head / (spec_.q_heads / spec_.kv_heads), *spec_.q_out_dtype);
}

Want Oracle::k_out(int64_t row, int64_t head, int64_t dim) const {
  int64_t key = row * spec_.kv_heads + head;
  if (row >= tokens_) return {data_.k[static_cast<size_t>(key * spec_.head_dim + dim)]};  // final already
  return rotate(head_of(data_.k, k_factors_, data_.k_weight, key), dim, row);
}

// x * (1 / scale), the reciprocal rounded to fp32. A power of two is exact; else x / scale is as good.
Want Oracle::scaled(Want want, const std::vector<float>& scales, int64_t head, NumberFormat format) const {
  float scale = scales.size() == 1 ? scales.front() : scales.at(static_cast<size_t>(head));
  float inverse = 1.0f / scale;
  bool is_exact = static_cast<double>(scale) * inverse == 1.0;
  // A rotation too small for fp32 is zero, which matters to an infinite factor.
  double value = limit_to_fp32_range(rounded_to_fp32(want.value) * inverse);
  if (want.slack > 0) want.slack = want.slack * std::fabs(inverse) + kFp32Tiny;
  if (!is_exact) {
    want.slack += kDivideOrReciprocal * std::fabs(value) + kFp32Tiny;
    if (bytes_of(format) == 2) want.ulps = spec_.tolerance.ulps;
  }
  want.value = value;
  return want;
}

Want Oracle::scaled_for_cache(const Want& want, const std::optional<std::vector<float>>& scales,
                              int64_t head) const {
  return scales && spec_.apply_scale ? scaled(want, *scales, head, spec_.cache_format()) : want;
}

// x / scale, an IEEE division in fp32: that of two fp32 values in double, rounded once more, is the same.
Want Oracle::divided(double value, const std::optional<std::vector<float>>& scales, int64_t head) const {
  if (!scales || !spec_.apply_scale) return {value};
  float scale = scales->size() == 1 ? scales->front() : scales->at(static_cast<size_t>(head));
  return {rounded_to_fp32(value / scale)};
}

Want Oracle::cached_key(int64_t row, int64_t head, int64_t dim) const {
  return scaled_for_cache(k_out(row, head, dim), data_.k_scale, head);
}

Want Oracle::cached_key_of(double k_out, int64_t head) const {
  return divided(k_out, data_.k_scale, head);
}

Want Oracle::cached_value(int64_t row, int64_t head, int64_t dim) const {
  float value = data_.v[static_cast<size_t>((row * spec_.kv_heads + head) * spec_.value_dim() + dim)];
  return spec_.match_unfused ? divided(value, data_.v_scale, head)
                             : scaled_for_cache({value}, data_.v_scale, head);
}

}  // namespace kvrope::regress
