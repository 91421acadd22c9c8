// The number formats of tensors, written from their definitions alone: sign, exponent and fraction bits. The
// oracle uses these and nothing else to read and to round values, so that it shares no code with the
// operation.
#pragma once

#include <cstdint>

namespace kvrope::regress {

enum class NumberFormat { fp16, bf16, fp32, fp8_e4m3, fp8_e5m2 };

int bytes_of(NumberFormat format);
bool is_fp8(NumberFormat format);
const char* name_of(NumberFormat format);

// The value of a bit pattern (low bits of `bits`). fp8_e4m3 has no infinities, its NaN are 0x7f and 0xff.
double decode(NumberFormat format, uint32_t bits);

// The nearest value of the format, ties to even. Overflow gives infinity, in fp8 the largest finite value,
// which is also what fp8 makes of infinities. NaN stays NaN and zero keeps its sign.
uint32_t encode(NumberFormat format, double value);

// Distance of neighbouring values of the format around `value`: the spacing of the subnormals below the
// normal range and of the last binade beyond it.
double ulp(NumberFormat format, double value);

// Position of an fp8 code on the number line, so that neighbouring values differ by one; both zeros are 0.
int fp8_ordinal(uint32_t code);

// The value that fp32 arithmetic has in place of an exact result beyond its range: infinity.
double limit_to_fp32_range(double value);

uint32_t load_bits(NumberFormat format, const uint8_t* from);
void store_bits(NumberFormat format, uint32_t bits, uint8_t* to);

}  // namespace kvrope::regress
