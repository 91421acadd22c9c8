// What every element must be after the call, in double arithmetic, from sections 3 to 5 of the contract.
#pragma once

#include "runner/call_data.h"
#include "runner/comparator.h"

namespace kvrope::regress {

class Oracle {
 public:
  // Throws std::invalid_argument where the case asks for what the oracle does not know, or for what the
  // operation must refuse, so that a call that returned all the same is no success.
  Oracle(const CaseSpec& spec, const CallData& data);

  Want q_out(int64_t row, int64_t head, int64_t dim) const;
  Want k_out(int64_t row, int64_t head, int64_t dim) const;

  // Where the row goes in the caches. A row whose position is out of range goes nowhere, unless it is padding
  // anyway.
  Destination destination_of(int64_t row) const;
  Want cached_key(int64_t row, int64_t head, int64_t dim) const;
  // Under match_unfused the key is that of the element which the call gave to k_out, to the bit.
  Want cached_key_of(double k_out, int64_t head) const;
  Want cached_value(int64_t row, int64_t head, int64_t dim) const;

  // Rows that a device without exceptions must report: their slot or their position is out of range.
  bool has_faults() const;

 private:
  enum class Angle { in_table, zero_row, nan_row };
  Angle angle_of(int64_t row) const;
  int64_t position_of(int64_t row, size_t axis) const;
  bool position_in_table(int64_t row) const;

  struct Head {  // as it is rotated
    const float* values;
    double factor = 1;
    const float* weight = nullptr;  // of a head that is normed
    double plus_one = 0;

    double at(int64_t dim) const;
    double subnormal_error(int64_t dim) const;  // at most, of at(dim), from roundings to subnormals of fp32
  };
  // `head` counts those of all rows.
  Head head_of(const std::vector<float>& rows, const std::vector<double>& factors,
               const std::vector<float>& weight, int64_t head) const;
  struct CosSin {
    double cosine, sine;
  };
  // Of a pair of the rotated part, as its element j takes them from the table.
  CosSin cos_sin_at(int64_t row, int64_t pair, int64_t j) const;
  Want rotate(const Head& head, int64_t dim, int64_t row) const;
  Want scaled(Want want, const std::vector<float>& scales, int64_t head, NumberFormat format) const;
  Want scaled_for_cache(const Want& want, const std::optional<std::vector<float>>& scales,
                        int64_t head) const;
  Want divided(double value, const std::optional<std::vector<float>>& scales, int64_t head) const;

  const CaseSpec& spec_;
  const CallData& data_;
  int64_t tokens_, capacity_, rotary_dim_, width_;
  std::vector<double> q_factors_, k_factors_;  // of each head of each row that is normed; else empty
};

}  // namespace kvrope::regress
