#pragma once
// exp(x) and erfc(z) over a lane of float32. The coefficients are our own least-maximum fits.

namespace torchamp::kernels {

/// exp(x) within 1.5 units in the last place; 0 below -104, inf above 89, NaN of NaN; results below
/// 2^-126 are rounded once more, to a multiple of 2^-149.
template <typename L>
L exponential(L x) {
  // smaller() and larger() give back a NaN in their second argument.
  x = smaller(L::all(89.0), larger(L::all(-104.0), x));
  // x = n ln 2 + r with |r| <= ln(2) / 2: adding 1.5 * 2^23 leaves no bits below 1.
  const L round = L::all(0x1.8p+23);
  const L n = fma(x, L::all(1.4426950408889634), round) - round;
  L r = fma(n, L::all(-0x1.62e4p-1), x);  // the upper bits of ln 2: exact for |n| <= 256
  r = fma(n, L::all(-1.4286068203094173e-06), r);
  L p = L::all(0.0013814539415761828);  // relative error of the polynomial: 3.1e-9
  p = fma(p, r, L::all(0.00836874544620514));
  p = fma(p, r, L::all(0.04166838899254799));
  p = fma(p, r, L::all(0.1666652113199234));
  p = fma(p, r, L::all(0.4999999403953552));
  p = fma(p * r, r, r) + L::all(1.0);
  return times_power_of_2(p, n);
}

/// For z >= 0: exp(-z^2), and erfc(z) = exp(-z^2) * ratio.
template <typename L>
struct Erfc {
  L exponential_part;
  L ratio;
};

/// erfc within 8 units in the last place where it is a normal number, 0 from z = 10.2.
template <typename L>
Erfc<L> erfc_parts(L z) {
  z = smaller(L::all(10.2), z);
  const L square = z * z;
  const L rest = fma(z, z, L::all(0.0) - square);  // what rounding took from the square
  const L e = exponential(L::all(0.0) - square);
  // exp(z^2) erfc(z) as a polynomial in (z - 2.5) / (z + 2.5); relative error 3.1e-8.
  const L s = (z - L::all(2.5)) / (z + L::all(2.5));
  L p = L::all(-5.7316523452755064e-05);
  p = fma(p, s, L::all(0.00021033233497291803));
  p = fma(p, s, L::all(0.0008159958524629474));
  p = fma(p, s, L::all(-0.002639888320118189));
  p = fma(p, s, L::all(-0.003974204417318106));
  p = fma(p, s, L::all(0.039922237396240234));
  p = fma(p, s, L::all(-0.12503553926944733));
  p = fma(p, s, L::all(0.25171327590942383));
  p = fma(p, s, L::all(-0.37173664569854736));
  p = fma(p, s, L::all(0.21080635488033295));
  return {e - e * rest, p};
}

}  // namespace torchamp::kernels
