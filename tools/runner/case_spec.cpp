#include "runner/case_spec.h"

namespace kvrope::regress {

int64_t MropeSpec::axis_of(int64_t frequency) const {
  if (!section || section->size() != 3) return 0;
  const std::vector<int64_t>& sizes = *section;
  if (interleaved) {
    int64_t axis = frequency % 3;
    return axis > 0 && frequency < 3 * sizes[static_cast<size_t>(axis)] ? axis : 0;
  }
  if (frequency < sizes[0]) return 0;
  return frequency < sizes[0] + sizes[1] ? 1 : 2;
}

int64_t CaseSpec::tokens() const {
  constexpr int64_t kDefaultTokens = 5;
  if (num_tokens) return *num_tokens;
  if (positions.chosen() == PositionsSpec::Pattern::requests) {
    int64_t total = 0;
    for (const Request& request : *positions.requests) total += request.length;
    return total;
  }
  if (positions.chosen() == PositionsSpec::Pattern::explicit_values) {
    return static_cast<int64_t>(positions.values->front().size());
  }
  return kDefaultTokens;
}

int64_t CaseSpec::position_axes() const {
  constexpr int64_t kAxes = 3;  // time, height, width
  if (positions.values && positions.values->size() > 1) return static_cast<int64_t>(positions.values->size());
  return positions.axes.value_or(has_section() ? kAxes : 1);
}

int64_t CaseSpec::kv_rows() const {
  return num_kv_rows.value_or(tokens());
}

int64_t CaseSpec::slots_length() const {
  if (num_slots) return *num_slots;
  if (slots.chosen() == SlotsSpec::Pattern::explicit_values)
    return static_cast<int64_t>(slots.values->size());
  return tokens();
}

int64_t CaseSpec::table_width() const {
  if (const int64_t* columns = std::get_if<int64_t>(&table.width)) return *columns;
  bool is_full = std::get<TableSpec::Width>(table.width) == TableSpec::Width::full;
  return is_full ? 2 * rotated_dims() : rotated_dims();
}

NumberFormat CaseSpec::cache_format() const {
  switch (kv_cache_dtype) {
    case CacheDType::same:
      return dtype;
    case CacheDType::fp8_e4m3:
    case CacheDType::fp8_e4m3_in_uint8:
      return NumberFormat::fp8_e4m3;
    case CacheDType::fp8_e5m2:
    case CacheDType::fp8_e5m2_in_uint8:
      return NumberFormat::fp8_e5m2;
  }
  return dtype;
}

}  // namespace kvrope::regress
