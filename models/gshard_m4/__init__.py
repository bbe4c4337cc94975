from models.gshard_m4.model import GShardM4 as MODEL

__all__ = ["MODEL"]
