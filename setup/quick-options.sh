# Options of the builds of ./quickstart and ./check, which halve the compiler's time: -Og for what is not computed per token
# (meson.build), no debug information, no warnings. No native file: Meson would apply it again after `meson configure`.
quick_options=(-Ddebug=false -Doptimization=g -Dwarning_level=0 -Dwerror=false -Dc_args=-w)
