#include <torch/torch.h>

int main() {}
