"""The proxy's configuration: the file's schema, the flags over it, and the settings they make."""

from steersman_proxy.config.load import LoadedConfig, load_config, pools_without_row
from steersman_proxy.config.overrides import FLAGS, Override, add_flags, overrides_of
from steersman_proxy.config.schema import ProxyConfig

__all__ = [
    "FLAGS",
    "LoadedConfig",
    "Override",
    "ProxyConfig",
    "add_flags",
    "load_config",
    "overrides_of",
    "pools_without_row",
]
